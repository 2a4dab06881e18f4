"""Which syncs count: never one that may have been answered for bytes that the kernel has thrown away."""

from __future__ import annotations

import os
import threading

import pytest

from tests.telemetry.logged import make_logger
from toolkit.telemetry.logger.writing import record_appender

PATIENCE_S = 60.0


@pytest.fixture
def log(tmp_path):
    log = make_logger(tmp_path, log_every=1, system=False, diagnostics=False, sync_interval=0)
    yield log
    log.close()


def files_of(log):
    writer = log._run.pipeline._writer
    return writer, writer._file


def test_a_sync_in_the_midst_of_writing_again_does_not_count(log, monkeypatch):
    writer, file = files_of(log)
    answers = []

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    def put(descriptor, data, offset):
        # Another thread syncs now, and the disk says yes.
        other = threading.Thread(target=lambda: answers.append(writer.sync()))
        other.start()
        other.join(PATIENCE_S)
        return os.pwrite(descriptor, data, offset)

    log.log_step(1, train_loss=1.0)
    log.flush(PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(record_appender, "_fdatasync", fail)
        patch.setattr(record_appender, "pwrite", put)
        assert writer.sync() is False
        held = list(file._unsynced)
        assert held
        patch.setattr(record_appender, "_fdatasync", lambda descriptor: None)
        log.flush(PATIENCE_S)

    assert answers
    assert not any(answers)
    assert list(file._unsynced)[: len(held)] == held
    assert writer.sync() is True
    assert not file._unsynced


def test_of_two_syncs_at_once_the_second_waits_for_the_answer_of_the_first(log, monkeypatch):
    writer, _ = files_of(log)
    is_under_way, may_fail = threading.Event(), threading.Event()
    answers = []

    def fail_once(descriptor):
        # The kernel reports a lost write to the first of two, and to no other.
        monkeypatch.setattr(record_appender, "_fdatasync", lambda descriptor: None)
        is_under_way.set()
        may_fail.wait(PATIENCE_S)
        raise OSError(5, "Input/output error")

    log.log_step(1, train_loss=1.0)
    log.flush(PATIENCE_S)
    monkeypatch.setattr("toolkit.telemetry.logger.writing.writer._WAIT_FOR_SYNC_S", PATIENCE_S)
    monkeypatch.setattr(record_appender, "_fdatasync", fail_once)
    monkeypatch.setattr(writer._job, "wake", lambda: None)
    threads = [threading.Thread(target=lambda: answers.append(writer.sync())) for _ in range(2)]
    threads[0].start()
    assert is_under_way.wait(PATIENCE_S)
    threads[1].start()
    may_fail.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert log.guard.counts == {"syncing the records: OSError": 1}
    assert answers[0] is False
