"""A machine at its limits: no descriptors, inodes, memory, threads or shared memory left."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import Counter

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, repair
from tests.faults.crash_checks import assert_nothing_is_missing, whole_run
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.writing import record_appender
from toolkit.telemetry.logger.writing.record_appender import RecordFile
from toolkit.telemetry.runfolder.journal.journal import journals_in
from toolkit.telemetry.runfolder.manifest import read_manifest


def test_a_script_that_has_used_up_all_descriptors_loses_nothing(tmp_path, start, record_property):
    ended = start(
        PROGRAMS / "use_up_all_descriptors.py",
        tmp_path,
        fresh=True,
    ).end(code=7)

    assert ended.number("taken") > 100
    assert ended.number("slowest") < LONGEST_PAUSE_S
    # A thread of ours may have closed one at just that time; then there is a journal after all.
    assert ended.err.count("making a journal failed") <= 1
    said = Counter(re.findall(r"\[telemetry\] (.+?) failed \(OSError: \[Errno 24\]", ended.err))
    assert said
    assert max(said.values()) <= 2, "once for each thing that failed, and each of two runs"
    before = whole_run(tmp_path / "before", steps=range(1400))
    during = whole_run(tmp_path / "during", steps=range(1200))
    assert not with_event(before + during, "lost")
    record_property("measured", f"{len(before) + len(during):,} records with no descriptor left, 0 lost")


@pytest.mark.root
def test_a_file_system_without_inodes_loses_nothing(mount_in_memory, start, record_property):
    disk = mount_in_memory("nr_inodes=40")
    child = start(PROGRAMS / "log_until_end.py", disk)
    child.wait_for_step(200)
    taken = []
    while os.statvfs(disk).f_ffree:
        taken.append(disk / f"taken-{len(taken)}")
        with contextlib.suppress(OSError):
            taken[-1].touch()
    child.tell("new")
    child.wait_for_step(child.acknowledged + 500)
    for path in taken:
        path.unlink(missing_ok=True)
    ended = child.end(line="end", code=7)

    assert ended.number("slowest") < LONGEST_PAUSE_S
    records = whole_run(disk / "run", steps=range(child.acknowledged + 1))
    assert not with_event(records, "lost")
    record_property("measured", f"{len(records):,} records, 0 lost")


def test_a_machine_that_starts_no_threads_writes_everything_at_the_end(tmp_path, start, record_property):
    ended = start(
        PROGRAMS / "start_no_threads.py",
        tmp_path,
    ).end(code=7)

    assert ended.number("refused")
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.number("closing") < 5 + LONGEST_PAUSE_S, "no thread ever comes"
    assert "starting a thread failed" in ended.err
    records = read_records(tmp_path / "run")
    assert_nothing_is_missing(records)
    assert len(with_event(records, "step")) == 2000
    assert with_event(records, "start")
    assert with_event(records, "checkpoint")
    assert with_event(records, "end")
    assert read_manifest(tmp_path / "run").latest.status == "finished"
    repair(tmp_path / "run")
    whole_run(tmp_path / "run", steps=range(2000))
    record_property("measured", f"{len(records):,} records without a thread of ours, 0 lost")


def test_records_that_there_was_no_memory_to_keep_are_written_once_and_so_is_what_follows(
    tmp_path, monkeypatch
):
    log = TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, csv=False)
    refused = []

    def no_memory(data):
        refused.append(len(data))
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(record_appender, "bytes", no_memory, raising=False)
        # Of a batch that the disk takes in parts, each part is copied.
        once = record_appender.RecordFile._append
        patched.setattr(
            record_appender.RecordFile,
            "_append",
            lambda file, data, **how: once(file, data[: len(data) // 2 or 1], **how),
        )
        for step in range(100):
            log.log_step(step, train_loss=1.0)
        assert log.flush(30)
    for step in range(100, 200):
        log.log_step(step, train_loss=1.0)
    log.close()

    assert refused
    records = read_records(tmp_path / "run")
    assert_nothing_is_missing(records)
    assert [record["global_step"] for record in with_event(records, "step")] == [*range(200)]


def test_a_record_file_that_cannot_be_read_is_tried_again_without_using_up_descriptors(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"half a line")
    file = RecordFile(path, file_mode=0o600, folder_mode=0o700)

    def sick(*_):
        raise OSError(errno.EIO, "the last block is bad")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", sick)
        for _ in range(20):
            with pytest.raises(OSError, match="bad"):
                file.open()
    left_open = _descriptors_of(path)
    file.open()
    file.take(b"a line\n")
    file.write()
    file.close()

    assert left_open == []
    assert path.read_bytes() == b"half a line\na line\n"


def _descriptors_of(path):
    """Return the descriptors that this process has for a file; what other threads have open is theirs."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}") == str(path.resolve()):
                found.append(name)
    return found


@pytest.mark.root
@pytest.mark.parametrize("how", ["size=64k", "ro"])
def test_a_kill_without_room_for_a_journal_in_shared_memory_loses_nothing(
    tmp_path, start, how, record_property
):
    child = start(
        """
        import ctypes, subprocess

        # A world of its own, in which shared memory is full or read-only.
        alone = ctypes.CDLL(None).unshare(0x20000) == 0
        for mount in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", sys.argv[2], "tmpfs", "/dev/shm"]):
            alone = alone and subprocess.run(["mount", *mount]).returncode == 0
        print(f"alone={int(alone)}", flush=True)
        acknowledged = Acknowledged(os.environ["ACKNOWLEDGED"])
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False)
        for step in range(1_000_000):
            log.log_step(step, train_loss=1.0)
            acknowledged.set(step)
            if step % 50 == 0:
                time.sleep(0.001)
        """,
        tmp_path,
        how,
    )
    if "alone=1" not in child.wait_for_line("alone="):
        pytest.skip("shared memory cannot be taken away from one process here")
    child.wait_for_step(3000)
    child.kill()
    journals = list(journals_in(tmp_path / "run"))
    repair(tmp_path / "run")

    assert journals, "the journal is in the run folder"
    records = whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))
    assert not with_event(records, "lost")
    record_property("measured", f"{child.acknowledged + 1:,} records acknowledged, 0 lost")
