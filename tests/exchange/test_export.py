"""`telemetry export` writes what other tools read, with the same points."""

from __future__ import annotations

import csv
import math
import os

import pytest

from tests.exchange.commands import files_in, telemetry
from tests.importers.reading import only_run
from tests.lengths import in_make_faults
from tests.made_runs import append
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.importers.source import NO_STEP, read_all

NAN = math.nan


@pytest.fixture
def run(tmp_path):
    """A run with two sessions, the second from step 3 on, and values that are not finite."""
    records = [{"event": "start", "session": 1, "config": {"lr": 0.1, "hf_token": "hf_" + "a" * 34}}]
    records += [
        {"event": "step", "session": 1, "global_step": step, "train_loss": step + 0.1, "is_warm": step < 1}
        for step in range(6)
    ]
    records += [{"event": "start", "session": 2}]
    records += [
        {"event": "step", "session": 2, "global_step": step, "train_loss": value, "lr": 0.1}
        for step, value in ((3, NAN), (4, math.inf), (5, -math.inf))
    ]
    records += [{"event": "eval", "session": 2, "global_step": 5, "val_loss": 0.25, "tokens": 10**16 + 1}]
    records += [{"event": "epoch", "session": 2, "global_step": 5, "epoch": 1, "acc": 0.5}]
    records += [{"event": "system", "session": 2, "cpu_percent": 7.0}]
    records += [{"event": "end", "session": 2, "status": "finished"}]
    for seq, record in enumerate(records):
        record.update(seq=seq, time=1_700_000_000.125 + seq)
    return append(tmp_path / "logs" / "lora", records)


def points(prefixed, **more):
    """Return the points that count: by metric, steps with values in words."""
    evaluation, epoch, system = (prefixed, "epoch/", "system/") if prefixed else ("", "epoch/", "")
    losses = [(0, 0.1), (1, 1.1), (2, 2.1), (3, "nan"), (4, "inf"), (5, "-inf")]
    return {
        "train_loss": [(step, str(value)) for step, value in losses],
        "lr": [(step, "0.1") for step in (3, 4, 5)],
        "is_warm": [(0, "1.0"), (1, "0.0"), (2, "0.0")],
        f"{evaluation}val_loss": [(5, "0.25")],
        f"{evaluation}tokens": [(5, "1e+16")],
        f"{epoch}acc": [(5, "0.5")],
        f"{system}cpu_percent": [(None, "7.0")],
        **more,
    }


def export(capsys, run, to, out, *options, code=0):
    return telemetry(capsys, "export", run, "--to", to, "--out", out, *options, code=code)


def read_back(path, **options):
    """Return the points and times that our own reader of the format finds."""
    found, times = {}, []
    for batch in read_all(only_run(path, **options)):
        for column in batch.columns:
            rows = found.setdefault(column.metric, [])
            rows += zip(
                (None if s == NO_STEP else s for s in column.steps), map(short, column.values), strict=True
            )
            times += column.times
    return found, times


def short(value):
    return str(float(f"{value:.6g}"))


def by_metric(rows):
    found = {}
    for row in rows:
        step = row.get("step")
        found.setdefault(row["metric"], []).append(
            (int(step) if step not in ("", None) else None, row["value"])
        )
    return found


def test_csv_has_every_point_and_is_the_same_each_time(run, tmp_path, capsys):
    done = export(capsys, run, "csv", tmp_path / "a.csv")
    assert done["points"] == 16
    assert any("1 integers beyond 2^53 were rounded" in note for note in done["notes"])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert by_metric(csv.DictReader(file)) == points("")
    before = (tmp_path / "a.csv").read_bytes()
    assert b",1700000001.125," in before
    export(capsys, run, "csv", tmp_path / "a.csv", "--force")
    assert (tmp_path / "a.csv").read_bytes() == before


def test_parquet_keeps_nan_and_infinity(run, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    export(capsys, run, "parquet", tmp_path / "a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert by_metric([{**row, "value": str(row["value"])} for row in rows]) == points("")


def test_metrics_and_sessions_can_be_chosen(run, tmp_path, capsys):
    export(capsys, run, "csv", tmp_path / "a.csv", "--metrics", "*loss")
    rows = list(csv.DictReader((tmp_path / "a.csv").open(newline="")))
    assert [row["value"] for row in rows] == ["0.1", "1.1", "2.1", "nan", "inf", "-inf", "0.25"]
    assert {row["metric"] for row in rows} == {"train_loss", "val_loss"}
    export(capsys, run, "csv", tmp_path / "all.csv", "--all-sessions")
    assert (tmp_path / "all.csv").read_text().count("train_loss") == 9


def test_tensorboard_reads_every_point(run, tmp_path, capsys):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    export(capsys, run, "tensorboard", tmp_path / "tb")
    accumulator = accumulators.EventAccumulator(str(tmp_path / "tb"))
    accumulator.Reload()
    found = {
        tag: [(event.step, short(event.value)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    # An event of TensorBoard always has a step: the last one.
    assert found == points("eval/", **{"system/cpu_percent": [(5, "7.0")]})
    assert accumulator.Scalars("train_loss")[0].wall_time == 1_700_000_001.125
    assert b"a" * 34 not in b"".join(files_in(tmp_path / "tb").values())


def test_an_export_replaces_only_what_an_export_wrote(run, tmp_path, capsys):
    (tmp_path / "notes.csv").write_text("mine\n")
    (tmp_path / "mine").mkdir()
    for to, name in (("csv", "notes.csv"), ("run-folder", "mine")):
        for options in ((), ("--force",)):
            assert main(["export", str(run), "--to", to, "--out", str(tmp_path / name), *options]) == 2
    assert (tmp_path / "notes.csv").read_text() == "mine\n"
    export(capsys, run, "csv", tmp_path / "run.csv")
    export(capsys, run, "csv", tmp_path / "run.csv", "--force")
    assert sorted(os.listdir(tmp_path)) == ["logs", "mine", "notes.csv", "run.csv"]
    assert main(["export", str(tmp_path / "mine"), "--to", "csv"]) == 2


@in_make_faults
def test_wandb_reads_every_point(run, tmp_path, capsys):
    pytest.importorskip("wandb")
    from tests.mirrors.exporters.test_wandb import kept_by_wandb, rows

    done = export(capsys, run, "wandb", tmp_path / "out")
    assert done["points"] == 16
    assert any("1 integers beyond 2^53 were rounded" in note for note in done["notes"])
    found, times = read_back(tmp_path / "out" / "wandb", only="wandb")
    steps = dict(zip(found["global_step"], found["global_step"], strict=True))
    assert steps
    values = {name: [value for _, value in rows] for name, rows in found.items() if name != "global_step"}
    assert values == {name: [value for _, value in rows] for name, rows in points("eval/").items()}
    assert min(times) == 1_700_000_001.125
    assert b"a" * 34 not in b"".join(files_in(tmp_path / "out").values())
    by_wandb = {}
    for row in rows(kept_by_wandb(tmp_path / "out")):
        step = row.pop("global_step", None)
        for name in [name for name in row if not name.startswith("_")]:
            by_wandb.setdefault(name, []).append((step, str(float(row[name]))))
    assert by_wandb == points("eval/", **{"system/cpu_percent": [(5, "7.0")]})
