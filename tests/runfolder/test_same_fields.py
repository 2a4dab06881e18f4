from __future__ import annotations

from toolkit.telemetry.runfolder.records import runs_of


def _records():
    steps = [{"event": "step", "global_step": step, "loss": 1.0 / (step + 1)} for step in range(30)]
    other_order = {"global_step": 30, "event": "step", "loss": 0.5}
    more = {"event": "step", "global_step": 31, "loss": 0.5, "lr": 0.1}
    return [*steps[:20], {"event": "eval", "val_loss": 1.0}, *steps[20:], other_order, more, {}]


def test_records_with_the_same_fields_in_the_same_order_are_together():
    records = _records()

    runs = list(runs_of(records))

    assert [len(run.records) for run in runs] == [20, 1, 10, 1, 1, 1]
    assert [record for run in runs for record in run.records] == records
    assert all(tuple(record) == run.names for run in runs for record in run.records)
    assert [len(run.records) for run in runs] == [20, 1, 10, 1, 1, 1]


def test_the_columns_of_a_run_are_the_values_of_its_records():
    run = next(runs_of(_records()))

    assert {name: list(column) for name, column in run.columns.items()} == {
        name: [record[name] for record in run.records] for name in run.names
    }
