"""A disk that answers with errors, late, or in part: each fault is met by a run of its own, all in one process."""

from __future__ import annotations

import errno
import os
import re
import time

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, repair
from tests.faults.crash_checks import whole_run
from tests.faults.fault_rules import set_rules
from tests.lengths import in_make_faults, longer
from tests.records import with_event
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.manifest import read_manifest

FAULTS = {
    "hangs": ("write", "hang", None),
    "is-slow": ("write", "slow", None),
    "takes-a-part": ("write", "short", None),
    "is-full": ("write", "ENOSPC", None),
    "is-beyond-its-quota": ("write", "EDQUOT", None),
    "became-read-only": ("write", "EROFS", None),
    "fails-to-write": ("write", "EIO", None),
    "fails-ten-writes": ("write", "EIO", 10),
    "forgot-its-open-files": ("write", "ESTALE", None),
    "fails-to-sync": ("fsync", "EIO", None),
    "opens-nothing": ("open", "EIO", None),
    "renames-nothing": ("rename", "EIO", None),
}
"""What the disk does: the call that goes wrong, how, and how often."""

HAS_FUSE = os.access("/dev/fuse", os.R_OK | os.W_OK)


@pytest.fixture(
    params=["a file system", pytest.param("injected", marks=[in_make_faults] if HAS_FUSE else [])]
)
def layer(request):
    """Where the faults are made: in a real file system where one can be mounted, and between Python and the system."""
    return request.param


@pytest.mark.slow
def test_no_disk_fault_loses_a_record_or_delays_the_loop(tmp_path, start, layer, request, record_property):
    if layer == "a file system":
        disk = request.getfixturevalue("faulty_disk")
        logs, switch, injected = disk.mounted, disk.switch, "-"
    else:
        logs, switch, injected = tmp_path / "logs", tmp_path / "rules", tmp_path / "rules"
    child = start(PROGRAMS / "log_many_runs.py", logs, injected, *FAULTS)
    child.wait_for_step(50)
    for name in FAULTS:
        wait_until((logs / name / "metrics.csv").exists)
    wait_until(lambda: b'"event":"step"' in (logs / "opens-nothing" / "metrics.jsonl").read_bytes())
    set_rules(switch, *(_rule(name) for name in FAULTS))
    # What is opened again while nothing can be: the file was there, so what was in it is gone and has to be reported.
    os.unlink(logs / "opens-nothing" / "metrics.jsonl")
    child.tell("faults")
    began = time.monotonic()
    child.wait_for_step(child.acknowledged + 300)
    # The sign of life of every run comes every five seconds, and each file is looked after every second.
    wait_until(lambda: time.monotonic() - began > longer(1.5, 3.0))
    # Files that are opened again are well: that is to be found out while the old ones still fail.
    _wait_for_growth(logs / "forgot-its-open-files" / "metrics.jsonl")
    switch.unlink()
    for name in FAULTS:
        _wait_for_growth(logs / name / "metrics.jsonl")
    ended = child.end(line="end", code=7)

    slowest = {name: ended.number(name) for name in FAULTS}
    assert max(slowest.values()) < LONGEST_PAUSE_S, slowest
    # A table keeps the rows of records that someone took away, until it is built again.
    repair(logs / "opens-nothing")
    logged = 0
    for name in FAULTS:
        records = whole_run(logs / name)
        steps = [record["global_step"] for record in with_event(records, "step")]
        lost = sum(record["records"] for record in with_event(records, "lost"))
        assert steps == list(range(steps[0], child.acknowledged + 1)), (
            f"{name}: not all acknowledged are there"
        )
        assert (steps[0] == 0) == (name != "opens-nothing"), name
        assert bool(lost) == (name == "opens-nothing"), name
        assert read_manifest(logs / name).latest.status == "finished", name
        logged += len(records) + lost
    _assert_said_once(ended.err)
    record_property(
        "measured",
        f"{len(FAULTS)} faults, {logged:,} records, 0 lost undeclared, slowest call "
        f"{1000 * max(slowest.values()):.0f} ms",
    )


@in_make_faults
@pytest.mark.root
@pytest.mark.parametrize("fault", [{"calls": 1}, {}], ids=["once", "for good"])
def test_a_table_that_fails_at_the_end_is_tried_again_or_said_to_be_incomplete(
    tmp_path, start, faulty_disk, capsys, fault
):
    child = start(
        """
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, close_timeout=float(sys.argv[2]))
        log.log_step(0, train_loss=1.0)
        log.flush(60)
        print("is flushed", flush=True)
        sys.stdin.readline()
        for step in range(1, 2000):
            log.log_step(step, train_loss=1.0 / step)
        """,
        *(faulty_disk.mounted, 60 if fault else 1),
    )
    child.wait_for_line("is flushed")
    faulty_disk.fail({"op": "any", "do": "EIO", "path": "metrics.csv", **fault})
    child.tell("go")
    ended = child.end(code=0)
    hits = faulty_disk.hits
    faulty_disk.heal()

    assert hits
    run = faulty_disk.mounted / "run"
    if not fault:
        assert "metrics.csv did not take everything in time" in ended.err
        assert read_manifest(run).latest.reason == "exit; incomplete: metrics.csv"
        main(["doctor", str(run)])
        assert "the last records are missing in metrics.csv" in capsys.readouterr().out
        repair(run)
    assert read_manifest(run).latest.reason == "exit"
    whole_run(run, steps=range(2000))


def test_a_file_server_that_dies_and_comes_back_is_written_to_again(start, faulty_disk, record_property):
    run = faulty_disk.mounted / "run"
    child = start(PROGRAMS / "log_many_runs.py", faulty_disk.mounted, "-", "run")
    child.wait_for_step(100)
    faulty_disk.die()
    child.wait_for_step(child.acknowledged + 150)
    before = (faulty_disk.shown / "run" / "metrics.jsonl").stat().st_size
    faulty_disk.unmount()
    child.wait_for_step(child.acknowledged + 150)
    in_the_mount_point = list(faulty_disk.mounted.iterdir())
    faulty_disk.mount()
    began = time.monotonic()
    wait_until(lambda: (run / "metrics.jsonl").stat().st_size > before)
    took = time.monotonic() - began
    ended = child.end(line="end", code=7)

    assert not in_the_mount_point, "nothing is written below an empty mount point"
    # What was cut in the middle by the server's death stays as it is, and is there again as a whole.
    half_lines = int((run / "metrics.jsonl").read_bytes()[before - 1 : before] != b"\n")
    if "metrics.csv" in ended.err:
        # The table, a copy, had not caught up when the process was over, and that was said.
        repair(run)
    records = whole_run(run, steps=range(child.acknowledged + 1), torn_lines=half_lines)
    assert not with_event(records, "lost")
    assert took < LONGEST_PAUSE_S
    record_property(
        "measured", f"{len(records):,} records, 0 lost, written again {took:.1f} s after it came back"
    )


@pytest.mark.parametrize("journal", ["shm", "folder"])
def test_descriptors_that_a_script_closes_lose_nothing_and_its_new_files_stay_untouched(
    tmp_path, start, journal
):
    ended = start(
        PROGRAMS / "close_all_descriptors.py",
        tmp_path,
        journal,
    ).end(code=7)

    assert ended.number("closed") >= 3, "the records', their lock's and the journal's"
    records = whole_run(tmp_path / "run", steps=range(600))
    assert not with_event(records, "lost")


def _rule(name):
    op, what, calls = FAULTS[name]
    rule = {"op": op, "do": what, "path": f"/{name}/", "old": what == "ESTALE"}
    return rule if calls is None else {**rule, "calls": calls}


def _assert_said_once(err):
    """Each run says once what goes wrong at what; the disk's own words are in it."""
    said = re.findall(r"\[telemetry\] (.+?) failed \((.+?)\); training continues", err)
    for words in ("No space left", "Disk quota", "Read-only", "Stale file", "Input/output"):
        assert any(words in answer for _, answer in said), f"nothing was said of {words!r}: {said}"
    number = {
        words: sum(_words(what) == words for _, what, _ in FAULTS.values()) for words in map(_said, said)
    }
    # The file that the test removes: a file system may answer so for the descriptor that is still open.
    number[os.strerror(errno.ENOENT)] = 1
    for doing, answer in set(said):
        times, runs = said.count((doing, answer)), number.get(_said((doing, answer)), 0)
        assert times <= runs, f"{doing!r} was said {times} times by {runs} runs: {answer}"


def _said(one):
    return re.sub(r"^.*\[Errno \d+\] |: .*$", "", one[1])


def _words(what):
    return os.strerror(getattr(errno, what)) if what.isupper() else ""


def _wait_for_growth(path):
    wait_until(path.exists)
    size = path.stat().st_size
    wait_until(lambda: path.stat().st_size > size)
