"""What fuzzing has found and no input of the corpus shows, each as the case that a user would have met."""

from __future__ import annotations

import pytest

from tests.made_runs import step_record, write_run
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.importers.training_yaml import parse_config
from toolkit.telemetry.runfolder.table.columns import Columns
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_log import RunLog


def test_a_cache_file_with_a_flipped_byte_is_rejected_if_its_columns_do_not_fit_together(tmp_path):
    folder = write_run(tmp_path, "r", [step_record(i, train_loss=float(i)) for i in range(20)])
    log = RunLog(folder / "metrics.jsonl", None)
    log.refresh(60.0)
    cache = ColumnCache(tmp_path / "cache")
    cache.prepare(log.path, log._columns, log._cursor)()
    (file,) = (tmp_path / "cache").glob("*.arrow")
    whole = file.read_bytes()
    assert cache.load(log.path) is not None

    # The highest byte of each word: some are lengths, and believed they had the process read beyond the file and end.
    for at in range(7, len(whole), 8):
        file.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        found = cache.load(log.path)
        if found is None:
            continue
        columns, _ = found
        assert {len(columns.time), len(columns.elapsed), len(columns.step), len(columns.epoch)} == {20}
        for metric in columns.metrics.values():
            assert len(metric.rows) == len(metric.values)
            columns.time.values[metric.rows.values].sum()
            metric.values.values.sum()


def test_a_name_under_non_finite_that_the_record_lacks_makes_no_cell():
    columns = Columns()
    odd = {"event": "step", "time": 1.5, "seq": 0, "non_finite": {"later": "NaN"}}
    columns.add_new_of(odd)
    before = columns.row(odd)
    columns.add_new_of({"event": "note", "time": 2.5, "seq": 1, "later": 1.0})

    assert columns.row(odd) == [*before, ""]


def test_a_json_config_of_brackets_is_refused_with_a_message():
    with pytest.raises(OptionsError, match="invalid JSON"):
        parse_config("[" * 100_000, is_json=True)
