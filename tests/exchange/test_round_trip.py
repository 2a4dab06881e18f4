"""What `show --json` says about a run of another tool, it says about its export, or the export says what is lost."""

from __future__ import annotations

import ast
import csv
import json
import re
import struct
from contextlib import suppress

import pytest

from tests.exchange.commands import telemetry
from tests.importers import samples
from tests.lengths import in_make_faults, longer
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import safe_run_name

_RENAMED = re.compile(r"the metric (.*) is (?:called )?(.*?)$")
TABLES = ("csv", "parquet")


def shown(capsys, path, *options):
    """Return the runs that are not deleted."""
    return [run for run in telemetry(capsys, "show", path, *options)["runs"] if not run["deleted"]]


def places(root, name):
    """Yield each log of a sample, with the options to read it."""
    if name.startswith("text_logs/"):
        for run in samples.expected(root, name)["runs"]:
            yield root / name / run["file"], ["--format", "text"]
    else:
        yield root / name, []


def series_of(run):
    return {kind: run[kind] for kind in ("metrics", "system")}


def loosely(run, renamed=()):
    """Return what every tool keeps: of each series how many points, and its last one in 32 bits."""
    names = dict(renamed)
    found = {}
    for name, series in {**run["metrics"], **run["system"]}.items():
        with suppress(OverflowError):
            last = struct.pack("f", float(series["last"]["value"]))
            found[names.get(name, name)] = (series["count"], series["nan"], last)
    return found


def with_points(runs):
    return [run for run in runs if run["metrics"] or run["system"]]


def check_tables(capsys, path, options, tmp_path):
    runs = shown(capsys, path, *options)
    before = with_points(runs)
    rows = {"parquet": [], "csv": []}
    for to in TABLES if runs else ():
        out = tmp_path / f"out.{to}"
        done = telemetry(
            capsys, "export", path, *options, "--to", to, "--out", out, "--force", "--all-sessions"
        )
        assert any("of series alone" in note for note in done["notes"])
        assert done["points"] == sum(
            series["count"] for run in before for kind in series_of(run).values() for series in kind.values()
        ), to
        if to == "parquet":
            import pyarrow.parquet

            rows[to] = pyarrow.parquet.read_table(out).to_pylist()
        elif before:
            (after,) = shown(capsys, out)
            assert [series_of(piece) for piece in after["pieces"]] == [*map(series_of, before)], to
            assert len(before) > 1 or after["name"] == before[0]["name"]
        if to == "csv":
            with out.open(encoding="utf-8", newline="") as file:
                rows[to] = [*csv.DictReader(file)]
    assert [plain(row) for row in rows["parquet"]] == [plain(row) for row in rows["csv"]]


def plain(row):
    """Return a row in words; a CSV file marks names that a spreadsheet would compute."""
    numbers = [row[key] for key in ("session", "step", "time", "value")]
    return [
        *(row[key].removeprefix("'") for key in ("run", "event", "metric")),
        *(None if number in ("", None) else str(float(number)) for number in numbers),
    ]


def check_tensorboard(capsys, path, options, tmp_path):
    before = shown(capsys, path, *options)
    if not before:
        return
    out = tmp_path / "tensorboard"
    done = telemetry(
        capsys, "export", path, *options, "--to", "tensorboard", "--out", out, "--force", "--all-sessions"
    )
    notes = " ".join(done["notes"])
    renamed = [
        [*map(ast.literal_eval, match.groups())] for note in done["notes"] if (match := _RENAMED.match(note))
    ]
    assert notes.count("has no numbers") == len(before) - len(with_points(before)), notes
    if with_points(before):
        expected = sorted(repr(sorted(loosely(run, renamed).items())) for run in with_points(before))
        after = with_points(shown(capsys, out))
        assert sorted(repr(sorted(loosely(run).items())) for run in after) == expected, (path, notes)


@pytest.mark.parametrize("name", samples.names(samples.ours()))
def test_a_sample_comes_back_from_tables(name, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    for path, options in places(samples.ours(), name):
        check_tables(capsys, path, options, tmp_path)


@pytest.mark.parametrize("name", samples.names(samples.ours())[:: longer(3, 1)])
def test_a_sample_comes_back_from_tensorboard(name, tmp_path, capsys):
    pytest.importorskip("tensorboard")
    for path, options in places(samples.ours(), name):
        check_tensorboard(capsys, path, options, tmp_path)


@in_make_faults
@pytest.mark.skipif(
    not samples.OTHERS.is_dir(), reason="needs ../shared/foreign, logs from public repositories"
)
@pytest.mark.parametrize("name", samples.names(samples.OTHERS))
def test_logs_from_public_repositories_come_back(name, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    pytest.importorskip("tensorboard")
    if name.startswith("aim/"):
        pytest.importorskip("aim")
    for path, options in places(samples.OTHERS, name):
        check_tables(capsys, path, options, tmp_path)
        check_tensorboard(capsys, path, options, tmp_path)


def test_runs_of_one_name_stay_apart(tmp_path, capsys):
    for folder, value in (("a", 1), ("b", 2), ("c", 3)):
        (tmp_path / "logs" / folder / "dreambooth").mkdir(parents=True)
        (tmp_path / "logs" / folder / "dreambooth" / "metrics.csv").write_text(
            f"step,epoch,loss\n0,5,{value}\n"
        )
    (tmp_path / "logs" / "other.csv").write_text("step,loss\n0,4\n")
    main(["ls", str(tmp_path / "logs"), "--json"])
    names = {run["label"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert len(names) == 4

    for to in ("csv", "tensorboard"):
        telemetry(capsys, "export", tmp_path / "logs", "--to", to, "--out", tmp_path / f"out.{to}")
    rows = [*csv.DictReader((tmp_path / "out.csv").open(newline=""))]
    assert {row["run"] for row in rows} == names
    assert [row["value"] for row in rows if row["metric"] == "epoch"] == ["5.0"] * 3, "no epoch vanishes"
    folders = {run["name"] for run in shown(capsys, tmp_path / "out.tensorboard")}
    assert folders == {*map(safe_run_name, names)}


def test_what_an_export_leaves_out_is_said(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(
        '{"event": "x", "step": 1, "time": 5.0, "loss": 1.0, "ok": true}\n'
        '{"step": 2, "seq": 7, "tokens": 9007199254740993}\n'
    )
    for name, text in (("one", "0 val 1.5\n"), ("two", "0 val 1.5\n1 val 1.0\n0 val 2.0\n")):
        (tmp_path / f"{name}.log").write_text(text)

    def notes(name, to, *options):
        done = telemetry(
            capsys, "export", tmp_path / name, "--to", to, "--out", tmp_path / "out", "--force", *options
        )
        return " ".join(done["notes"])

    assert "two: 2 points of steps that a later session logged again were left out" in notes("two.log", "csv")
    assert "left out" not in notes("two.log", "csv", "--all-sessions")
    said = notes("log.jsonl", "csv")
    assert "2 values that are no numbers are no points: 'event', 'ok'" in said
    assert "1 values from 2^53 on: whole numbers of that size are not exact" in said
    assert "x_seq" not in said
    (tmp_path / "sum.csv").write_text("step,=1+1\n0,5\n")
    assert """'=1+1' is called "'=1+1\"""" in notes("sum.csv", "csv")
    (tmp_path / "out").unlink()
    assert "one has no times" in notes("one.log", "tensorboard")
    assert shown(capsys, tmp_path / "out")[0]["metrics"]["val"]["last"]["value"] == 1.5
