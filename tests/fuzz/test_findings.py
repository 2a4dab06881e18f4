"""What fuzzing has found, each as the case that a user would have met."""

from __future__ import annotations

import pytest

from tests.made_runs import step_record, write_run
from toolkit.telemetry.core.checks import OptionsError
from toolkit.telemetry.importers.training_yaml import parse_config, read_training_yaml
from toolkit.telemetry.mirrors.one_logger_file.exporter import OneLoggerFileExporter
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.table.columns import Columns
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.listing.run_listing import RootListing, read_start
from toolkit.telemetry.runs.listing.search import MAX_QUERY_LENGTH, QueryError, parse

DEEP = "[" * 1_000 + "]" * 1_000


@pytest.mark.parametrize(
    "content", [f'{{"format":{DEEP}}}', f'{{"format":1,"run_id":"a","name":"b","created":1,"x":{DEEP}}}']
)
def test_a_manifest_of_a_thousand_brackets_is_refused_and_hides_no_other_run(tmp_path, content):
    write_run(tmp_path, "good", [step_record(1, train_loss=1.0)])
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text(content)

    with pytest.raises(ManifestError, match="nested too deeply"):
        read_manifest(bad)
    runs, _ = RootListing(tmp_path).scan()
    assert {run.folder.name: run.problem is None for run in runs} == {"good": True, "bad": False}


def test_a_start_record_of_a_thousand_brackets_is_no_start_record(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"event":"start","config":{DEEP}}}\n')

    assert read_start(tmp_path / "metrics.jsonl") == {}


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


@pytest.mark.parametrize("text", ["telemetry: {project: 2001-99-99}", "a: " + "[" * 1_000])
def test_a_yaml_that_crashes_the_parser_is_refused_with_a_message(tmp_path, text):
    (tmp_path / "train.yaml").write_text(text)

    with pytest.raises(OptionsError, match="invalid YAML"):
        read_training_yaml(tmp_path / "train.yaml")


def test_a_json_config_of_brackets_is_refused_with_a_message():
    with pytest.raises(OptionsError, match="invalid JSON"):
        parse_config("[" * 100_000, is_json=True)


def test_what_the_search_box_says_stays_short():
    with pytest.raises(QueryError) as said:
        parse("x" * (MAX_QUERY_LENGTH - 10) + "<y")

    assert len(str(said.value)) < 200


def test_a_foreign_line_does_not_switch_the_one_logger_file_off(tmp_path):
    exporter = OneLoggerFileExporter(tmp_path / "one_logger.jsonl", run_id="r")

    exporter.write([{"event": "lost"}, {"event": "error", "source": "telemetry"}])
    exporter.close()
