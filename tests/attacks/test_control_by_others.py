"""Unauthorised requests: from another user, copied, replayed, half written, or far too many."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time

import pytest

from tests.attacks.hostile_folders import ODD
from tests.faults.children import LONGEST_PAUSE_S
from tests.lengths import longer
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.control import ControlRefused, read_request, write_request
from toolkit.telemetry.runfolder.reader import read_from

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no owners and modes to check")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's file"
)
NOBODY = 65534
_PATIENCE_S = 60.0


@pytest.fixture
def run(tmp_path):
    """A run that accepts stop, save, and another learning rate."""
    log = TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, csv=False)
    log.declare_action("save")
    log.declare_action("stop")
    log.declare_knob("lr", float, low=1e-6, high=1e-2)
    yield log
    log.close()


def look(log):
    """Let the run check its control file twice: a half-written one is refused at the second check."""
    log._rank_control.poll()
    log._rank_control.poll()
    log.log_step(next(_steps), train_loss=1.0)


_steps = itertools.count(1)


def answers(log):
    log.flush()
    records = read_from(log.run_folder / "metrics.jsonl").records
    return [record for record in records if record["event"] == "control_change"]


def plant(path, content, *, uid=None, mode=0o600):
    """Replace the file with `content` atomically, optionally as another user."""
    temporary = path.with_name(f".{os.urandom(4).hex()}")
    temporary.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    os.chmod(temporary, mode)
    if uid is not None:
        os.chown(temporary, uid, uid)
    os.replace(temporary, path)


def asking(**more):
    return {"id": os.urandom(4).hex(), "timestamp": time.time() + 1.0, "actions": ["stop"], **more}


@as_root
def test_no_other_user_can_stop_a_training(run, tmp_path, record_property):
    """Their file, their folder, their link, their mode, in a folder that everybody may write to, as in /tmp."""
    folder, control = run.run_folder, run.run_folder / "control.json"
    tried = 0

    def try_it(prepare, undo=lambda: None):
        nonlocal tried
        tried += 1
        prepare()
        look(run)
        undo()
        control.unlink(missing_ok=True)

    theirs = tmp_path / "theirs.json"
    plant(theirs, asking(), uid=NOBODY)
    mine = tmp_path / "mine.json"
    plant(mine, asking())
    os.chmod(folder, 0o700)
    try_it(lambda: plant(control, asking(), uid=NOBODY))
    try_it(lambda: plant(control, asking(), mode=0o666))
    try_it(lambda: plant(control, asking(), mode=0o620))
    try_it(lambda: control.symlink_to(theirs))
    try_it(lambda: control.symlink_to(mine))
    try_it(lambda: os.link(mine, control))
    for mode in (0o777, 0o1777, 0o770, 0o702):
        try_it(
            lambda mode=mode: (os.chmod(folder, mode), plant(control, asking()))[0],
            lambda: os.chmod(folder, 0o700),
        )
    try_it(
        lambda: (os.chown(folder, NOBODY, NOBODY), plant(control, asking()))[0],
        lambda: os.chown(folder, 0, 0),
    )

    assert not run.should_stop
    assert {answer["status"] for answer in answers(run)} == {"refused"}
    # The owner's request is still applied.
    write_request(folder, actions=["stop"])
    look(run)
    assert run.should_stop
    record_property("measured", f"{tried} ways of another user, 0 obeyed")


@posix
def test_a_file_swapped_between_check_and_read_is_never_another_users(tmp_path, record_property):
    """A thread puts our file, a linked one and, where we are root, another user's there in turn, as fast as it can."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    foreign = tmp_path / "foreign.json"
    foreign.write_bytes(json.dumps(asking(id="foreign")).encode())
    control, stop = folder / "control.json", threading.Event()
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(foreign, NOBODY, NOBODY)

    def swap():
        while not stop.is_set():
            plant(control, asking(id="ours"))
            control.unlink()
            control.symlink_to(foreign)
            control.unlink()
            if is_root:
                os.link(foreign, control)
                control.unlink()
                plant(control, asking(id="foreign"), uid=NOBODY)

    thread = threading.Thread(target=swap)
    thread.start()
    got = {"ours": 0, "refused": 0, "none": 0}
    until = time.monotonic() + longer(1.5, 60.0)
    # The order of writer and reader varies, so wait for both outcomes.
    while time.monotonic() < until or (
        min(got["ours"], got["refused"]) == 0 and time.monotonic() < until + _PATIENCE_S
    ):
        try:
            request = read_request(folder)
            read = "none" if request is None else request.id
            got[read] = got.get(read, 0) + 1
        except ControlRefused:
            got["refused"] += 1
    stop.set()
    thread.join()

    assert set(got) == {"ours", "refused", "none"}
    assert min(got["ours"], got["refused"]) > 0
    record_property("measured", f"{sum(got.values()):,} reads, {got['refused']:,} foreign files, 0 obeyed")


@posix
def test_a_half_written_request_is_never_obeyed_and_ours_is_atomic(tmp_path, record_property):
    """One thread writes in place, as editors do, and one by our own function; whole requests alone are read."""
    results = {}
    for way in ("in place", "replaced"):
        folder = tmp_path / way
        folder.mkdir(mode=0o700)
        control, stop = folder / "control.json", threading.Event()
        write_request(folder, log_every=50)

        def write(way=way, folder=folder, control=control, stop=stop):
            while not stop.is_set():
                if way == "replaced":
                    write_request(folder, log_every=50, knobs={"note": "x" * 500})
                    continue
                with control.open("wb", buffering=0) as file:
                    text = json.dumps(asking(log_every=50)).encode()
                    for at in range(0, len(text), 20):
                        file.write(text[at : at + 20])

        thread = threading.Thread(target=write)
        thread.start()
        whole = broken = 0
        until = time.monotonic() + longer(1.0, 30.0)
        while time.monotonic() < until or (
            not (broken if way == "in place" else whole) and time.monotonic() < until + _PATIENCE_S
        ):
            try:
                request = read_request(folder)
            except ControlRefused:
                broken += 1
            else:
                # A mix of two versions may still be JSON; an undeclared name refuses it as a whole.
                assert request is None or request.log_every == 50 or request.knobs
                whole += request is not None
        stop.set()
        thread.join()
        results[way] = (whole, broken)

    assert results["replaced"][0] > 0
    assert results["replaced"][1] == 0
    assert results["in place"][1], "nothing was ever read half written, and the test proves nothing"
    whole, broken = results["replaced"]
    record_property(
        "measured",
        f"{whole:,} reads next to a writer, {broken} broken; {results['in place'][1]:,} of a truncating one refused",
    )


def test_an_old_request_is_not_replayed_by_the_next_session_or_another_folder(tmp_path):
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False) as first:
        first.declare_action("stop")
        asked = write_request(first.run_folder, actions=["stop"], expires_in_s=None, run_id=first.run_id)
        look(first)
        assert first.should_stop
    kept = (first.run_folder / "control.json").read_bytes()
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False, resume=True) as log:
        log.declare_action("stop")
        other = TelemetryLogger("other", log_dir=tmp_path, system=False, csv=False)
        other.declare_action("stop")
        for content in (
            kept,
            json.dumps(
                {**json.loads(kept), "timestamp": time.time() + 5}
            ).encode(),  # the same id with a new date
        ):
            plant(log.run_folder / "control.json", content)
            look(log)
        # Copied to another run's folder with a new date, it still names its run.
        plant(
            other.run_folder / "control.json",
            json.dumps({**json.loads(kept), "id": "new", "timestamp": time.time() + 5}).encode(),
        )
        look(other)
        stopped = log.should_stop, other.should_stop
        answered = answers(other)
        other.close()

    assert log.run_folder == first.run_folder
    assert stopped == (False, False)
    assert [answer["status"] for answer in answered] == ["refused"]
    assert asked.id not in [answer["id"] for answer in answered]


def test_a_plain_file_of_an_earlier_session_is_not_obeyed_by_the_next(tmp_path):
    plain = json.dumps({"log_every": 100, "timestamp": time.time() + 1000.0}).encode()
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False) as first:
        folder = first.run_folder
        # At the end of the session, before it was read.
        first.close()
        plant(folder / "control.json", plain)
    os.utime(folder / "control.json", (1_700_000_000.0, 1_700_000_000.0))
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False, resume=True) as log:
        look(log)
        unmoved = log.log_every
        (folder / "control.json").chmod(0o400)
        look(log)
        unmoved_still = log.log_every
        plant(folder / "control.json", plain)
        look(log)

        assert (unmoved, unmoved_still, log.log_every) == (10, 10, 100)
        answered = answers(log)
    assert [answer["status"] for answer in answered] == ["expired", "applied"]


def test_no_value_outside_the_declared_reaches_the_script(run, record_property):
    """Each odd value as learning rate, action, interval and id; deep, huge and repeated ones; what is no JSON."""
    control = run.run_folder / "control.json"
    base = {"timestamp": time.time() + 1000.0}
    files = [
        *({**base, "knobs": {"lr": value}} for value in (*ODD, 1e30, -1.0, 0, 1, "0.001", [0.001], True)),
        *({**base, "actions": value} for value in ODD if value not in (None, [], "", {})),
        *({**base, "log_every": value, "actions": ["format_disk"]} for value in ODD),
        *({**base, "id": value, "actions": ["rm -rf"]} for value in ODD),
        {**base, "actions": ["stop"], "unknown": [1]},
        {**base, "actions": ["stop"] * 100},
        {**base, "run_id": "another", "actions": ["stop"]},
        {**base, "actions": ["stop"], "expires": 5.0},
        {**base, "knobs": {"__class__": 1, "lr": 1e30}},
    ]
    raw = [
        json.dumps(one, allow_nan=True).replace('"NaN"', "NaN").replace('"1e999"', "1e999").encode()
        for one in files
    ]
    raw += [
        b"{" * 60_000,
        b"[" * 60_000,
        b"\xff\xfe",
        b"\0" * 100,
        b"x" * 10_000_000,
        b'{"actions":["stop"],"actions":["stop"]}',
    ]
    raw += [
        b'{"timestamp":NaN,"actions":["stop"]}',
        b'{"timestamp":1e999,"actions":["stop"]}',
        b"stop",
        b'"stop"',
    ]
    for content in raw:
        plant(control, content)
        look(run)
    taken = run.take_requests()

    assert not run.should_stop
    assert taken == []
    assert {answer["status"] for answer in answers(run)} <= {"refused", "expired"}
    record_property("measured", f"{len(raw)} hostile requests, 0 obeyed, 0 raised")


def test_a_flood_of_requests_changes_the_run_a_few_times_and_never_slows_it(run, record_property):
    control = run.run_folder / "control.json"
    count = longer(300, 10_000)
    longest, first = 0.0, time.monotonic()
    for number in range(count):
        plant(control, {"id": f"s{number}", "timestamp": time.time(), "log_every": 5 + number % 100})
        run._rank_control.poll()
        began = time.perf_counter()
        run.log_step(next(_steps), train_loss=1.0)
        longest = max(longest, time.perf_counter() - began)
    took = time.monotonic() - first
    run.flush()
    answered = answers(run)

    # One in thirty seconds, however long the machine takes for all of them.
    assert sum(answer["status"] == "applied" for answer in answered) <= 2 + took / 30.0
    assert len(answered) <= count
    assert longest < LONGEST_PAUSE_S
    record_property(
        "measured", f"{count:,} requests, {len(answered)} seen, longest call {longest * 1000:.1f} ms"
    )
