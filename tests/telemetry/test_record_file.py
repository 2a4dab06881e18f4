"""Another process that appends to the record file spoils no record, or the run says which one."""

from __future__ import annotations

import os

import pytest

from tests.faults.crash_checks import assert_nothing_is_missing
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.writing.record_appender import RecordFile

FIRST, SECOND, THIRD = (b'{"seq":%d}\n' % seq for seq in range(3))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def file(path):
    file = RecordFile(path, file_mode=0o600, folder_mode=0o700)
    file.open()
    yield file
    file.close()


def append(path, data):
    with path.open("ab") as theirs:
        theirs.write(data)


def write(file, batch):
    file.take(batch)
    file.write()


@pytest.mark.parametrize(
    ("theirs", "spoilt"),
    [(b"half a line", [SECOND[:-1]]), (b"a line\n", []), (b"a line\nand half", [SECOND[:-1]])],
)
def test_a_line_that_another_process_spoils_at_the_same_time_is_known(
    file, path, monkeypatch, theirs, spoilt
):
    write(file, FIRST)
    plain = os.write

    def come_first(descriptor, data):
        append(path, theirs)
        return plain(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", come_first)
        write(file, SECOND + THIRD)

    assert list(file.spoilt) == spoilt
    assert file.bytes_of_others == len(theirs)
    assert path.read_bytes() == FIRST + theirs + SECOND + THIRD


def test_a_run_that_another_process_writes_into_reports_it_and_what_was_lost(tmp_path, caplog, monkeypatch):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, csv=False) as log:
        records = log.run_folder / "metrics.jsonl"
        log.log_step(0, train_loss=1.0)
        assert log.flush(60)
        append(records, b"half a line")
        log.log_step(1, train_loss=1.0)
        assert log.flush(60)
        plain, once = os.write, [b"and another half"]

        def come_first(descriptor, data):
            if once and os.path.samestat(os.fstat(descriptor), os.stat(records)):
                append(records, once.pop())
            return plain(descriptor, data)

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", come_first)
            log.log_step(2, train_loss=1.0)
            assert log.flush(60)
        log.log_step(3, train_loss=1.0)

    found = read_records(records, bad_lines=2)
    assert_nothing_is_missing(found)
    assert [step["global_step"] for step in with_event(found, "step")] == [0, 1, 3]
    (lost,) = with_event(found, "lost")
    assert (lost["records"], lost["reason"]) == (1, "another process appended half a line to the record file")
    assert caplog.text.count("another process appended to metrics.jsonl") == 1
