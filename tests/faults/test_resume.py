"""Runs that go on after an end, a kill or a power cut, and runs that want the same folder at the same time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter

import pytest

from tests.faults.children import repair
from tests.faults.crash_checks import whole_run
from tests.lengths import in_make_faults, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.journal.journal import shared_memory_folders
from toolkit.telemetry.runfolder.journal.repair import journals_of
from toolkit.telemetry.runfolder.manifest import read_manifest

LOGS_FOR_EVER = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, resume=len(sys.argv) > 2, system=False)
log.log_start()
log_for_ever(log)
"""


def test_three_sessions_follow_each_other_and_nothing_is_rewritten(tmp_path):
    left = []
    for first in (0, 50, 20):  # the third begins at a checkpoint that is after what the second reached
        with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
            for step in range(first, first + 50):
                log.log_step(step, train_loss=1.0, **{f"from_{first}": step})
        left.append((tmp_path / "run" / "metrics.jsonl").read_bytes())

    assert left[1].startswith(left[0])
    assert left[2].startswith(left[1])
    records = whole_run(tmp_path / "run")
    sessions = [record["session"] for record in records]
    assert sessions == sorted(sessions)
    assert set(sessions) == {1, 2, 3}
    assert len(with_event(records, "start")) == len(with_event(records, "end")) == 3
    steps = [record["global_step"] for record in with_event(records, "step")]
    assert steps == [*range(50), *range(50, 100), *range(20, 70)], "a rewound step is kept with the first one"
    manifest = read_manifest(tmp_path / "run")
    assert [(one.session, one.status) for one in manifest.sessions] == [(n, "finished") for n in (1, 2, 3)]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_killed_run_that_is_resumed_keeps_what_was_only_in_its_journal(tmp_path, start):
    run = tmp_path / "run"
    first = start(LOGS_FOR_EVER, tmp_path)
    first.wait_for_step(500)
    first.kill()
    on_disk = (run / "metrics.jsonl").read_bytes()
    second = start(LOGS_FOR_EVER, tmp_path, "resume")
    second.wait_for_step(200)
    second.kill()
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False):
        pass

    assert (run / "metrics.jsonl").read_bytes().startswith(on_disk)
    records = whole_run(run)
    assert not with_event(records, "lost")
    for session, child in ((1, first), (2, second)):
        steps = [
            record["global_step"] for record in with_event(records, "step") if record["session"] == session
        ]
        assert steps[: child.acknowledged + 1] == list(range(child.acknowledged + 1))
    assert [one.status for one in read_manifest(run).sessions] == ["lost", "lost", "finished"]


IS_THERE = """
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, close_timeout=1)
log.log_start()
log.flush(60)
if sys.argv[2] == "hangs on its disk":
    os.write = lambda *_: threading.Event().wait()
log_for_ever(log)
"""


@pytest.mark.parametrize("first", ["lives", "is stopped", "hangs on its disk"])
def test_a_run_whose_process_is_alive_is_not_resumed(tmp_path, start, first, capsys, caplog):
    writer = start(IS_THERE, tmp_path, first)
    writer.wait_for_step(100)
    if first == "is stopped":
        os.kill(writer.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
                log.log_step(0, train_loss=1.0)
            assert log.run_folder.name != "run"
            said = caplog.text
            shutil.rmtree(log.run_folder)
    finally:
        if first == "is stopped":
            os.kill(writer.pid, signal.SIGCONT)
    writer.wait_for_step(writer.acknowledged + 100)
    writer.kill()
    with TelemetryLogger(
        "run", log_dir=tmp_path, run_id=read_manifest(tmp_path / "run").run_id, system=False
    ):
        pass

    assert f"still being written by process {writer.pid}" in said
    assert "a folder of its own" in said
    records = whole_run(tmp_path / "run", steps=range(writer.acknowledged + 1))
    assert not with_event(records, "lost")


ELSEWHERE = {"host": "elsewhere", "boot_id": "theirs"}

HAS_NO_SHARED_MEMORY = (
    "import toolkit.telemetry.logger.writing.pipeline as r\nr.shared_memory_folders = lambda: []\n"
)


def _run_in_its_journal(tmp_path, start, before="", silent_s=0):
    """Return the folder of a run and its living process; most of its records are only in its journal.

    By its own clock it began, and gave its last sign of life, `silent_s` ago.
    """
    writer = start(
        before
        + """
class Slow:
    wall = staticmethod(lambda: time.time() - float(sys.argv[3]))
    monotonic = staticmethod(time.monotonic)

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, flush_interval=60, clock=Slow())
log.log_start()
log.flush(60)
for step in range(300):
    log.log_step(step, train_loss=1.0)
open(sys.argv[2], "w").close()
signal.pause()
""",
        tmp_path / "logs",
        tmp_path / "logged",
        silent_s,
    )
    wait_until((tmp_path / "logged").exists, writer)
    return tmp_path / "logs" / "run", writer


@pytest.mark.parametrize(
    ("changes", "silent_s", "goes_on"),
    [
        pytest.param(ELSEWHERE, 0, False, id="on another host that gave a sign just now"),
        pytest.param(ELSEWHERE, 200, False, id="on another host that is silent for some minutes"),
        pytest.param(ELSEWHERE, 400, True, id="on another host that is given up"),
        pytest.param({"boot_id": "another"}, 0, True, id="before this machine was restarted"),
        pytest.param({"pid": os.getpid()}, 0, True, id="whose process number is another's by now"),
        pytest.param(
            {"host": "container"}, 0, True, id="in a container of this machine that has released it"
        ),
        pytest.param({"pid_namespace": 1}, 0, True, id="in another pid namespace, and it has released it"),
        pytest.param(
            {"pid_namespace": 1, "lock": None},
            0,
            False,
            id="in another pid namespace, on a disk without locks",
        ),
        pytest.param(
            {"pid_namespace": 1, "lock": "1:1"},
            0,
            False,
            id="in another pid namespace, with another file locked",
        ),
    ],
)
def test_a_run_is_resumed_only_if_no_one_can_be_writing_it(tmp_path, start, changes, silent_s, goes_on):
    # The journal is in the run folder: any run that starts on this machine recovers what is in shared memory.
    run, writer = _run_in_its_journal(tmp_path, start, HAS_NO_SHARED_MEMORY, silent_s)
    wait_until(lambda: (run / "run.json").exists() and read_manifest(run).latest.lock, writer)
    writer.kill()
    mapping = json.loads((run / "run.json").read_text())
    mapping["sessions"][-1].update(changes)
    (run / "run.json").write_text(json.dumps(mapping))

    with TelemetryLogger("run", log_dir=run.parent, log_every=1, resume=True, system=False) as log:
        log.log_step(300, train_loss=1.0)

    assert (log.run_folder == run) == goes_on
    if goes_on:
        whole_run(run, steps=range(301))
    else:
        whole_run(log.run_folder)
        assert len(read_records(run)) < 300, "what another may be writing was not touched"


def test_a_copy_of_a_killed_run_is_resumed_and_the_original_keeps_its_records(tmp_path, start):
    run, writer = _run_in_its_journal(tmp_path, start)
    # Before the kill: afterwards any run that starts on this machine may write them out.
    # Hidden files come and go.
    shutil.copytree(run, tmp_path / "copies" / "run", ignore=shutil.ignore_patterns(".*"))
    writer.kill()
    with TelemetryLogger("run", log_dir=tmp_path / "copies", log_every=1, resume=True, system=False) as log:
        log.log_step(300, train_loss=1.0)
    repair(run)

    assert log.run_folder == tmp_path / "copies" / "run"
    copied = whole_run(tmp_path / "copies" / "run")
    *before, last = [record["global_step"] for record in with_event(copied, "step")]
    # A slow machine may have written out some of them before.
    assert (before, last) == (list(range(len(before))), 300)
    whole_run(run, steps=range(300))


GOES_ON_AT = """
time.sleep(max(0.0, float(sys.argv[3]) - time.time()))
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, resume=sys.argv[2] == "resume", system=False)
for step in range(5):
    log.log_step(step, train_loss=1.0, by=os.getpid())
log.close()
print(f"folder={log.run_folder.name}")
"""


@in_make_faults
@pytest.mark.timeout(longer(240, 3_000))
def test_of_several_that_go_on_with_one_run_at_the_same_time_one_gets_it(tmp_path, start, record_property):
    rounds, together = longer(6, 100), 2
    for _ in range(rounds):
        begin_at = time.time() + 0.05
        writers = [start(GOES_ON_AT, tmp_path, "resume", begin_at, always_fork=True) for _ in range(together)]
        for writer in writers:
            writer.end()
        folders = [writer.out.partition("folder=")[2].strip() for writer in writers]
        assert all(folders), [writer.err for writer in writers]

    by, went_on = Counter(), 0
    for folder in tmp_path.iterdir():
        records = whole_run(folder)
        assert not with_event(records, "lost")
        by.update(record["by"] for record in with_event(records, "step"))
        sessions = [record["session"] for record in records]
        assert sessions == sorted(sessions), "no session writes between the records of another"
        went_on += len(set(sessions)) - 1
        for session in set(sessions):
            mine = {record["by"] for record in with_event(records, "step") if record["session"] == session}
            assert len(mine) == 1, "one process a session"
    assert list(by.values()) == [5] * (rounds * together), "no one's records are missing"
    assert went_on >= rounds - 1, "of each round one got the run"
    record_property(
        "measured",
        f"{rounds} times {together} processes at once, {len(by)} writers, {sum(by.values())} records, "
        f"{went_on} resumed",
    )


def test_what_a_power_cut_took_is_named_by_the_next_session(tmp_path, start):
    run = tmp_path / "run"
    child = start(LOGS_FOR_EVER, tmp_path)
    wait_until((run / "run.json").exists, child)
    wait_until(lambda: (read_manifest(run).heartbeat or _Nothing).seq > 300, child)
    wait_until(lambda: len(read_records(run, live=True)) > 100, child)
    child.kill()
    known = read_manifest(run).heartbeat.seq
    # A power cut takes what is in memory, and of the files what was not synced; a table may keep more than that.
    for path, _ in journals_of(run):
        path.unlink(missing_ok=True)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:100]) + b"\0" * 366)

    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
        log.log_step(100, train_loss=1.0)

    records = whole_run(run, torn_lines=1)
    (lost,) = with_event(records, "lost")
    assert (lost["from_seq"], lost["to_seq"]) == (100, known)
    assert "power" in lost["reason"]
    assert with_event(records, "step")[-1]["seq"] > known, "a number that was given once is not given again"


def test_half_a_line_that_cannot_be_completed_is_ended_before_the_next(tmp_path):
    run = tmp_path / "run"
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(0, train_loss=1.0)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"step","seq":99,"tr')
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
        log.log_step(1, train_loss=1.0)

    records = whole_run(run, steps=range(2), torn_lines=1)
    assert [record["session"] for record in with_event(records, "step")] == [1, 2]


def test_the_newest_run_of_a_name_is_found_although_an_older_one_was_deleted(tmp_path):
    for _ in range(3):
        with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
            log.log_step(0, train_loss=1.0)
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(tmp_path / "run-2")

    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
        log.log_step(1, train_loss=1.0)

    assert [path.name for path in tmp_path.iterdir()] == ["run-3"]
    whole_run(tmp_path / "run-3", steps=range(2))


@pytest.mark.skipif(
    not shared_memory_folders(), reason="without shared memory the journal lies on the full disk"
)
def test_a_resume_on_a_full_disk_does_not_raise_and_writes_what_was_left_behind_once_there_is_room(
    tmp_path, start
):
    first = start(
        """
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, flush_interval=60)
        log.log_start()
        log.flush(60)
        for step in range(500):
            log.log_step(step, train_loss=1.0)
        print("logged", flush=True)
        signal.pause()
        """,
        tmp_path,
    )
    first.wait_for_line("logged")
    first.kill()
    second = start(
        """
        import resource

        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(sys.argv[1] + "/run/metrics.jsonl").st_size + 100, hard))
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, resume=True)
        log.log_step(500, train_loss=1.0)
        time.sleep(0.5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.close()
        sys.exit(7)
        """,
        tmp_path,
    )
    ended = second.end(code=7)

    # Half a line stays where the disk refused the rest, unless another run on this machine was quicker to recover it.
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    torn_lines = sum(not (line.startswith(b"{") and line.endswith(b"}")) for line in lines)
    assert torn_lines <= int("recovering a killed session failed" in ended.err)
    records = whole_run(tmp_path / "run", steps=range(501), torn_lines=torn_lines)
    assert not with_event(records, "lost")
    assert ": 0 records recovered" in repair(tmp_path / "run"), "and nothing comes a second time"
    assert not journals_of(tmp_path / "run")
    whole_run(tmp_path / "run", steps=range(501), torn_lines=torn_lines)


class _Nothing:
    seq = -1


@pytest.mark.parametrize("journal", ["shm", "folder"])
def test_a_script_that_executes_itself_again_resumes_its_run(tmp_path, start, journal):
    ended = start(
        """
        first = int(sys.argv[3])
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, resume=True, journal=sys.argv[2])
        for step in range(first, first + 50):
            log.log_step(step, train_loss=1.0)
        if first < 100:
            os.execv(sys.executable, [sys.executable, *sys.argv[:3], str(first + 50)])
        """,
        *(tmp_path / "logs", journal, 0),
    ).end(code=0)

    assert "resuming" not in ended.err
    whole_run(tmp_path / "logs" / "run", steps=range(150))
    assert [session.status for session in read_manifest(tmp_path / "logs" / "run").sessions] == [
        "lost",
        "lost",
        "finished",
    ]
