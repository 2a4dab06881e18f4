"""Another process that appends to the record file spoils no record, and the run reports it."""

from __future__ import annotations

from tests.faults.crash_checks import assert_nothing_is_missing
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger


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
