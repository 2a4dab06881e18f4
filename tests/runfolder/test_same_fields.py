from __future__ import annotations

from toolkit.telemetry.runfolder.records import FixedRecords, has_event, runs_of


def _records():
    steps = [{"event": "step", "global_step": step, "loss": 1.0 / (step + 1)} for step in range(30)]
    other_order = {"global_step": 30, "event": "step", "loss": 0.5}
    more = {"event": "step", "global_step": 31, "loss": 0.5, "lr": 0.1}
    return [*steps[:20], {"event": "eval", "val_loss": 1.0}, *steps[20:], other_order, more, {}]


def test_records_with_the_same_fields_in_the_same_order_are_together():
    records = _records()

    runs = runs_of(records)

    assert [len(run.records) for run in runs] == [20, 1, 10, 1, 1, 1]
    assert [record for run in runs for record in run.records] == records
    assert all(tuple(record) == run.names for run in runs for record in run.records)
    assert [len(run.records) for run in runs] == [20, 1, 10, 1, 1, 1]


def test_the_columns_of_a_run_are_the_values_of_its_records():
    run = runs_of(_records())[0]

    assert {name: list(column) for name, column in run.columns.items()} == {
        name: [record[name] for record in run.records] for name in run.names
    }


def test_runs_of_fixed_records_are_found_once():
    records = FixedRecords(_records())

    assert runs_of(records) is runs_of(records)
    assert [run.names for run in runs_of(records)] == [run.names for run in runs_of(_records())]


def test_an_event_is_found_in_long_and_short_runs():
    assert has_event(_records(), "step")
    assert has_event(_records(), "eval")
    assert not has_event(_records(), "finding")
    assert not has_event([], "finding")
