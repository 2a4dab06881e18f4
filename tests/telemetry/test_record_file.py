"""Another process that appends to the record file spoils no record, and the run reports it."""

from __future__ import annotations

import os

import pytest

from tests.faults.crash_checks import assert_nothing_is_missing
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.writing.record_appender import RecordFile


def test_a_run_that_another_process_writes_into_reports_it_and_begins_a_line_of_its_own(tmp_path, caplog):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, csv=False) as log:
        records = log.run_folder / "metrics.jsonl"
        for step, theirs in enumerate((b"half a line", b"a line\n", b"a line\nand another half")):
            log.log_step(step, train_loss=1.0)
            assert log.flush(60)
            with records.open("ab") as file:
                file.write(theirs)
        log.log_step(3, train_loss=1.0)

    found = read_records(records, bad_lines=4)
    assert_nothing_is_missing(found)
    assert [step["global_step"] for step in with_event(found, "step")] == [0, 1, 2, 3]
    assert caplog.text.count("another process appended to metrics.jsonl") == 1


@pytest.mark.parametrize("cut_in_a_line", [False, True])
def test_a_file_that_is_cut_between_a_look_and_a_write_has_its_gap_recorded(
    tmp_path, monkeypatch, cut_in_a_line
):
    take = RecordFile.take

    def cut_and_take(self, batch):
        if b'"train_loss":7.0' in batch:
            data = self.path.read_bytes()
            end = data.find(b"\n", data.find(b'"train_loss":1.0')) + 1
            os.truncate(self.path, end - 10 * cut_in_a_line)
        take(self, batch)

    monkeypatch.setattr(RecordFile, "take", cut_and_take)
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        for step in range(10):
            log.log_step(step, train_loss=float(step))
            assert log.flush(60)

    found = read_records(log.run_folder, bad_lines=int(cut_in_a_line))
    assert_nothing_is_missing(found)
    (lost,) = with_event(found, "lost")
    assert lost["records"] >= 5
    assert [step["global_step"] for step in with_event(found, "step")] == [
        0,
        *[1] * (not cut_in_a_line),
        7,
        8,
        9,
    ]
    assert log.guard.counts == {}
