"""The record file is locked for as long as a session writes it, wherever that can be, and nothing waits for it."""

from __future__ import annotations

import os
import threading

import pytest

from tests.faults.crash_checks import whole_run
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.writing import sessions, writer_lock
from toolkit.telemetry.logger.writing.writer_lock import WriterLock
from toolkit.telemetry.runfolder import portable
from toolkit.telemetry.runfolder.journal.journal import is_being_written
from toolkit.telemetry.runfolder.journal.repair import repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.safefile import open_to_write

pytestmark = pytest.mark.skipif(not portable._HAS_LOCKS, reason="this system has no such locks")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    return path


@pytest.fixture
def lock(path):
    lock = WriterLock(path)
    yield lock
    lock.close()


def keep(lock):
    """Look after the lock as a writer does, and wait until that is done."""
    lock.keep()
    if lock._asking is not None:
        lock._asking.join(60)


@pytest.mark.parametrize(
    "harm", ["the file is replaced", "a script closes the descriptor", "the folder comes back"]
)
def test_a_lock_that_was_lost_is_taken_again(lock, path, harm):
    keep(lock)
    if harm == "a script closes the descriptor":
        os.close(lock._open[0][0])
    else:
        path.unlink()
    if harm == "the folder comes back":
        keep(lock)
    path.touch()
    assert not is_being_written(path)
    keep(lock)

    assert is_being_written(path)


def test_a_run_on_a_file_system_without_locks_is_written_resumed_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setattr(portable.fcntl, "flock", _no_locks)
    for step in range(2):
        with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, resume=True) as log:
            log.log_step(step, train_loss=1.0)

    assert log.run_folder.name == "run"
    assert repair_run(log.run_folder).recovered == 0
    whole_run(log.run_folder, steps=range(2))


def _no_locks(*_):
    raise OSError(37, "No locks available")


def test_a_server_that_answers_no_request_for_a_lock_keeps_no_run_from_being_resumed(tmp_path, monkeypatch):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(0, train_loss=1.0)
    answers = threading.Event()
    plain = portable.fcntl.flock

    def on_files(descriptor, how):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".jsonl"):
            answers.wait(60)
        return plain(descriptor, how)

    monkeypatch.setattr(portable.fcntl, "flock", on_files)
    monkeypatch.setattr("toolkit.telemetry.runfolder.journal.repair.LOCK_PATIENCE_S", 0.2)
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, resume=True) as log:
        log.log_step(1, train_loss=1.0)
        assert log.flush(60)
    answers.set()

    assert log.run_folder.name == "run"
    whole_run(log.run_folder, steps=range(2))


def test_a_run_says_which_file_it_has_locked_as_long_as_it_lives(tmp_path):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        records = log.run_folder / "metrics.jsonl"
        wait_until(lambda: is_being_written(records))
        log._run._beat()
        wait_until(lambda: read_manifest(log.run_folder).latest.lock)
        while_it_lives = read_manifest(log.run_folder).latest.lock
        status = records.stat()

    assert while_it_lives == f"{status.st_dev}:{status.st_ino}"
    assert read_manifest(log.run_folder).latest.lock is None
    assert not is_being_written(records)


def test_a_lock_that_a_reader_has_briefly_does_not_keep_a_run_from_being_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "WAIT_FOR_OTHERS_S", 60.0)
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(0, train_loss=1.0)
    theirs = os.open(log.run_folder / "metrics.jsonl", os.O_RDWR)
    assert portable.try_lock(theirs)
    letting_go = threading.Timer(0.3, os.close, [theirs])
    letting_go.start()
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, resume=True) as again:
        again.log_step(1, train_loss=1.0)
    letting_go.join()

    assert again.run_folder == log.run_folder


def test_a_child_that_is_forked_while_the_file_is_opened_does_not_keep_it_locked(lock, path, monkeypatch):
    children, ends = [], os.pipe()

    def open_and_fork(*args, **options):
        descriptor = open_to_write(*args, **options)
        if not children:
            children.append(os.fork())
            if children[0] == 0:
                os.read(ends[0], 1)
                os._exit(0)
        return descriptor

    monkeypatch.setattr(writer_lock, "open_to_write", open_and_fork)
    keep(lock)
    assert lock.held
    lock.close()
    try:
        assert not is_being_written(path)
    finally:
        os.write(ends[1], b"!")
        os.waitpid(children[0], 0)
        for end in ends:
            os.close(end)
