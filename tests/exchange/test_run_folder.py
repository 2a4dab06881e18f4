"""`telemetry export --to run-folder` makes run folders that have every point of another tool's run."""

from __future__ import annotations

import math

import pytest

from tests.exchange.commands import telemetry
from tests.importers import samples
from tests.lengths import longer
from tests.records import read_records
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import METRICS_CSV, METRICS_JSONL
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.metrics import NOT_METRICS
from toolkit.telemetry.runfolder.table.csv_table import build_table

FEW = (
    "tensorboard/tensorboardx_2_6_everything",
    "wandb/offline_0_31",
    "hf_trainer_state/nan_and_resume_5_22",
)
NAMES = longer(FEW, [name for name in samples.names(samples.ours()) if not name.startswith("text_logs/")])


def compare(capsys, source, folder):
    """Assert that a run folder has the series of its source."""
    records = read_records(folder, of_any_type=True)
    assert [record["seq"] for record in records] == list(range(len(records)))
    (ours,) = telemetry(capsys, "show", folder)["runs"]
    found = {**ours["metrics"], **ours["system"]}
    for name, series in {**source["metrics"], **source["system"]}.items():
        if name in NOT_METRICS:
            continue
        same = found.get(name) or found.get(f"epoch/{name}") or found[f"x_{name}"]
        for part in ("count", "min", "max", "nan", "inf", "neg_inf"):
            assert same[part] == series[part], name
        for part in ("first", "last"):
            assert same[part]["step"] == series[part]["step"], name
            assert same[part]["value"] == series[part]["value"], name
            times = [end[part].get("time", math.nan) for end in (same, series)]
            assert math.isclose(*times, abs_tol=0.001, rel_tol=0) or all(map(math.isnan, times)), name


@pytest.mark.parametrize("name", NAMES)
def test_a_run_folder_has_every_point_of_its_source(name, tmp_path, capsys):
    source = samples.ours() / name
    before = samples.fingerprint(source)
    shown = {run["source_id"]: run for run in telemetry(capsys, "show", source)["runs"] if not run["deleted"]}
    options = ("--out", tmp_path / "logs", "--all-sessions")
    telemetry(capsys, "export", source, "--to", "run-folder", *options)
    folders = [path for path in (tmp_path / "logs").iterdir() if path.is_dir()]

    assert len(folders) == len(shown)
    for folder in folders:
        compare(capsys, shown[read_manifest(folder).other["imported_from"]["source_id"]], folder)
    assert samples.fingerprint(source) == before


def test_images_tables_and_histograms_are_kept(tmp_path, capsys):
    source = samples.ours() / "wandb" / "offline_0_31"
    telemetry(capsys, "export", source, "--to", "run-folder", "--out", tmp_path / "logs")
    folder = tmp_path / "logs" / "again"
    images = read_records(folder, "sample", of_any_type=True)
    tables = read_records(folder, "table", of_any_type=True)
    histogram = read_records(folder, "histogram", of_any_type=True)[0]

    assert images
    assert all((folder / record["path"]).read_bytes().startswith(b"\x89PNG") for record in images)
    assert [record["columns"] for record in tables] == [["a", "b"]] * len(tables)
    assert (folder / tables[0]["path"]).read_text().startswith("a,b\n")
    assert len(histogram["bins"]) == len(histogram["values"]) + 1


def test_it_is_an_ordinary_run_folder(tmp_path, capsys):
    table = tmp_path / "train.csv"
    table.write_text("step,loss,lr\n" + "".join(f"{step},{step / 7},0.1\n" for step in range(60)))
    logs = tmp_path / "logs"
    assert telemetry(capsys, "export", table, "--to", "run-folder", "--out", logs)["points"] == 120
    folder = logs / "train"

    assert build_table(folder / METRICS_JSONL, tmp_path / "again.csv", form="short").bad_lines == 0
    assert (tmp_path / "again.csv").read_bytes() == (folder / METRICS_CSV).read_bytes()
    assert main(["repair", str(folder)]) == 0
    assert main(["doctor", str(folder)]) in (0, 1)
    assert read_manifest(folder).heartbeat.global_step == 59
    assert str(tmp_path) not in (folder / "run.json").read_text()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    capsys.readouterr()
    assert main(["export", str(folder), "--to", "run-folder", "--out", str(tmp_path / "x")]) == 2
    assert "is a run folder already" in capsys.readouterr().err
