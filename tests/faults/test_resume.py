"""Runs that go on after an end, a kill or a power cut, and runs that want the same folder at the same time."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest

from tests.faults.aftermath import events, whole_run
from tests.faults.children import repair
from toolkit.runfolder.journal import shared_memory_folders
from toolkit.runfolder.manifest import read_manifest
from toolkit.runfolder.repair import journals_of
from toolkit.telemetry import TelemetryLogger

LOGS_FOR_EVER = """
acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, resume=len(sys.argv) > 2, system=False)
log.log_start()
step = 0
while True:
    log.log_step(step, train_loss=1.0)
    acknowledged.set(step)
    step += 1
    time.sleep(0.0005)
"""

LOGS_50_STEPS = """
import json

sys.stdin.readline()
options = json.loads(sys.argv[2])
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, **options)
for step in range(50):
    log.log_step(step, train_loss=1.0)
    time.sleep(0.01)
log.close()
print(f"folder={log.run_folder.name}")
"""


def test_three_sessions_stand_one_behind_the_other_and_nothing_is_rewritten(tmp_path):
    left = []
    for first in (0, 50, 20):  # the third begins at a checkpoint that lies behind what the second reached
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
    assert len(events(records, "start")) == len(events(records, "end")) == 3
    steps = [record["global_step"] for record in events(records, "step")]
    assert steps == [*range(50), *range(50, 100), *range(20, 70)], (
        "a rewound step is kept beside the first one"
    )
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
    assert not events(records, "lost")
    for session, child in ((1, first), (2, second)):
        steps = [record["global_step"] for record in events(records, "step") if record["session"] == session]
        assert steps[: child.acknowledged + 1] == list(range(child.acknowledged + 1))
    assert [one.status for one in read_manifest(run).sessions] == ["lost", "lost", "finished"]


def test_a_run_that_still_lives_is_not_gone_on_with(tmp_path, start):
    first = start(LOGS_FOR_EVER, tmp_path)
    first.wait_for_step(100)
    second = start(LOGS_50_STEPS, tmp_path, json.dumps({"resume": True}))
    second.tell("go")
    ended = second.end()
    first.wait_for_step(first.acknowledged + 100)
    first.kill()
    with TelemetryLogger(
        "run", log_dir=tmp_path, run_id=read_manifest(tmp_path / "run").run_id, system=False
    ):
        pass

    assert ended.code == 0, ended.err
    assert "folder=run-2" in ended.out
    assert f"still being written by process {first.process.pid}" in ended.err
    assert "a folder of its own" in ended.err
    whole_run(tmp_path / "run-2", steps=range(50))
    whole_run(tmp_path / "run", steps=range(first.acknowledged + 1))


def test_runs_of_one_name_that_start_together_get_a_folder_each(tmp_path, start):
    children = [start(LOGS_50_STEPS, tmp_path, "{}") for _ in range(4)]
    for child in children:
        child.tell("go")
    ended = [child.end() for child in children]

    assert [one.code for one in ended] == [0] * 4, ended[0].err
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"run", "run-2", "run-3", "run-4"}
    for folder in folders:
        whole_run(tmp_path / folder, steps=range(50))
    assert len({read_manifest(tmp_path / folder).run_id for folder in folders}) == 4


def test_of_several_that_go_on_with_one_run_at_the_same_moment_one_gets_it(tmp_path, start):
    first = start(LOGS_FOR_EVER, tmp_path)
    first.wait_for_step(300)
    first.kill()
    children = [start(LOGS_50_STEPS, tmp_path, json.dumps({"resume": True})) for _ in range(4)]
    time.sleep(0.5)
    for child in children:
        child.tell("go")
    ended = [child.end() for child in children]

    assert [one.code for one in ended] == [0] * 4, ended[0].err
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    records = [whole_run(tmp_path / folder) for folder in folders]
    assert sum(len(events(run, "end")) for run in records) == 4, "nobody's records are missing"
    assert "run" in {one.out.partition("folder=")[2].strip() for one in ended}, "and somebody went on with it"
    sessions = [{record["session"] for record in run} for run in records]
    assert {1, 2} <= sessions[0]


def test_what_a_power_cut_took_is_named_by_the_next_session(tmp_path, start):
    run = tmp_path / "run"
    child = start(LOGS_FOR_EVER, tmp_path)
    _wait_until(lambda: (read_manifest(run).heartbeat or _Nothing).seq > 300, run / "run.json")
    child.kill()
    known = read_manifest(run).heartbeat.seq
    # A power cut takes what is in memory, and of the files what was not synced; a table may keep more than that.
    for path, _ in journals_of(run):
        path.unlink()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:100]) + b"\0" * 366)

    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
        log.log_step(100, train_loss=1.0)

    records = whole_run(run, torn_lines=1)
    (lost,) = events(records, "lost")
    assert (lost["from_seq"], lost["to_seq"]) == (100, known)
    assert "power" in lost["reason"]
    assert events(records, "step")[-1]["seq"] > known, "a number that was given once is not given again"


def test_half_a_line_that_nobody_can_complete_is_ended_and_not_glued_to(tmp_path):
    run = tmp_path / "run"
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(0, train_loss=1.0)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"step","seq":99,"tr')
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
        log.log_step(1, train_loss=1.0)

    records = whole_run(run, steps=range(2), torn_lines=1)
    assert [record["session"] for record in events(records, "step")] == [1, 2]


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
        log.flush()
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
    ended = second.end()

    assert ended.code == 7, ended.err
    # Half a line stays where the disk refused the rest, unless another run on this machine was quicker to recover it.
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    torn_lines = sum(not (line.startswith(b"{") and line.endswith(b"}")) for line in lines)
    assert torn_lines <= int("recovering a killed session failed" in ended.err)
    records = whole_run(tmp_path / "run", steps=range(501), torn_lines=torn_lines)
    assert not events(records, "lost")
    assert ": 0 records recovered" in repair(tmp_path / "run"), "and nothing comes a second time"
    assert not journals_of(tmp_path / "run")
    whole_run(tmp_path / "run", steps=range(501), torn_lines=torn_lines)


class _Nothing:
    seq = -1


def _wait_until(holds, path):
    deadline = time.monotonic() + 20
    while not (os.path.exists(path) and holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
