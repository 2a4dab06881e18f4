"""Runs in containers: killed as a whole, seen from outside, and with the same path as another's."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter

import psutil
import pytest

from tests.faults.children import repair
from tests.faults.containers import container
from tests.faults.crash_checks import whole_run
from tests.lengths import in_make_faults, longer
from tests.records import read_records, with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.writing import sessions as writing_sessions
from toolkit.telemetry.runfolder.journal.journal import is_being_written, journals_in, shared_memory_folders
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.process import is_in_container, pid_namespace
from toolkit.telemetry.runfolder.status import work_out_status

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shared_memory_folders(), reason="there is no shared memory"),
]

LOGS_FOR_EVER = """
from toolkit.telemetry.logger.options import TelemetryOptions
TelemetryOptions.__init__.__kwdefaults__["journal"] = sys.argv[2]
log_for_ever(TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False), by=sys.argv[3])
"""


def test_a_container_that_is_killed_as_a_whole_loses_no_acknowledged_record(tmp_path, start, record_property):
    """Its shared memory ends with it, so the journal is in the run folder."""
    logged, times = 0, longer(1, 20)
    for number in range(times):
        log_dir = tmp_path / str(number)
        child = start(LOGS_FOR_EVER, log_dir, "auto", "it", container=container(own_shared_memory=True))
        child.wait_for_step(500)
        in_folder = list(journals_in(log_dir / "run"))
        child.kill()
        wait_until(lambda run=log_dir / "run": not is_being_written(run / "metrics.jsonl"))
        repair(log_dir / "run")

        assert len(in_folder) == 1
        records = whole_run(log_dir / "run", steps=range(child.acknowledged + 1))
        assert not with_event(records, "lost")
        logged += child.acknowledged + 1
    record_property(
        "measured", f"{times} containers killed as a whole, {logged:,} records acknowledged, 0 lost"
    )


def test_outside_of_a_container_the_journal_is_in_shared_memory(tmp_path):
    if is_in_container():
        pytest.skip("this is a container")
    with TelemetryLogger("run", log_dir=tmp_path, system=False) as log:
        journal = log._run.pipeline._journal.path

    assert journal.parent in shared_memory_folders()


def test_a_run_in_a_container_is_neither_called_lost_nor_resumed_from_outside_while_it_lives(
    tmp_path, start, caplog, monkeypatch, record_property
):
    run = tmp_path / "run"
    child = start(LOGS_FOR_EVER, tmp_path, "shm", "the first", container=container())
    child.wait_for_step(200)
    wait_until(lambda: read_manifest(run).latest.lock, child)
    session = read_manifest(run).latest
    found = work_out_status(read_manifest(run), time.time())
    # As after five minutes in which its machine was too busy for a sign of life.
    later = work_out_status(read_manifest(run), time.time() + 3600)
    mapping = json.loads((run / "run.json").read_text())

    assert session.pid_namespace not in (None, pid_namespace())
    assert (found.name, found.sure) == ("running", False)
    assert "another container" in found.why
    assert (later.name, later.sure) == ("lost", False)
    assert repair_run(run).in_use

    # Whatever run.json says of its process, as an old one would: who holds the lock is writing. Stopped, so that it
    # does not write its own run.json meanwhile.
    monkeypatch.setattr(writing_sessions, "WAIT_FOR_OTHERS_S", 0.1)
    (inside,) = psutil.Process(child.process.pid).children()
    inside.suspend()
    for changes in (
        {},
        {"pid_namespace": None, "pid": 2**22 + 1},
        {"status": "failed"},
        {"boot_id": "other"},
    ):
        sessions = [{**mapping["sessions"][-1], **changes}]
        (run / "run.json").write_text(json.dumps({**mapping, "sessions": sessions}))
        with TelemetryLogger("run", log_dir=tmp_path, log_every=1, resume=True, system=False) as log:
            log.log_step(0, train_loss=2.0, by="the second")
        assert log.run_folder != run, changes
        shutil.rmtree(log.run_folder)
    inside.resume()
    assert caplog.text.count("still being written by process") == 1
    assert caplog.text.count("another process has metrics.jsonl of run locked") == 3
    child.wait_for_step(child.acknowledged + 200)
    child.kill()
    wait_until(lambda: not is_being_written(run / "metrics.jsonl"))
    repair(run)

    records = whole_run(run, steps=range(child.acknowledged + 1))
    assert max(Counter(record["seq"] for record in records).values()) == 1
    assert {step["by"] for step in with_event(records, "step")} == {"the first"}
    record_property(
        "measured", f"{len(records):,} records of one writer, 4 tries to resume it, 0 numbers used twice"
    )


def test_a_container_that_is_killed_and_started_again_resumes_at_once(tmp_path, start):
    """Its process numbers cannot be looked up from the next one, but the lock is free."""
    run = tmp_path / "run"
    for _ in range(2):
        child = start(
            LOGS_FOR_EVER.replace("system=False", "system=False, resume=True"),
            *(tmp_path, "auto", "it"),
            container=container(own_shared_memory=True),
        )
        child.wait_for_step(200)
        wait_until(lambda: read_manifest(run).latest.lock, child)
        child.kill()
        wait_until(lambda: not is_being_written(run / "metrics.jsonl"))
    repair(run)

    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
    records = read_records(run)
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert {record["session"] for record in records} == {1, 2}


@in_make_faults
def test_two_containers_with_one_path_and_one_shared_memory_keep_their_records_apart(tmp_path, start):
    place = tmp_path / "data"
    disks = [tmp_path / "disk-a", tmp_path / "disk-b"]
    for folder in (place, *disks):
        folder.mkdir()
    first = start(
        LOGS_FOR_EVER.replace("system=False", "system=False, flush_interval=60"),
        *(place, "shm", "the first"),
        container=container(bind=(disks[0], place)),
    )
    first.wait_for_step(300)
    first.kill()
    wait_until(lambda: not is_being_written(disks[0] / "run" / "metrics.jsonl"))
    second = start(LOGS_FOR_EVER, place, "shm", "the second", container=container(bind=(disks[1], place)))
    second.wait_for_step(300)
    second.kill()
    wait_until(lambda: not is_being_written(disks[1] / "run" / "metrics.jsonl"))
    repair(disks[0] / "run", disks[1] / "run")

    for disk, child, name in zip(disks, (first, second), ("the first", "the second"), strict=True):
        records = whole_run(disk / "run", steps=range(child.acknowledged + 1))
        assert {step["by"] for step in with_event(records, "step")} == {name}
