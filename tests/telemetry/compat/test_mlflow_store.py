"""MLflow with our store: what its scripts log equals what MLflow's file store keeps, and survives kills."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lengths import longer
from tests.records import read_records, with_event
from toolkit.telemetry.importers.detect import find_sources
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.read_run import read_run
from toolkit.telemetry.runfolder.status import work_out_status

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow")

ROOT = Path(__file__).parents[3]
PLACES = longer((1, 2, 5, 12, 21, 40), tuple(range(1, 51)))
"""Calls that change a file: a kill in the middle of a line, of a batch, of an end, of a new session."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def found(place):
    """What the program found; MLflow finds our store by the entry point that pyproject.toml declares."""
    plugin = place / "plugin" / "declared-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
    declared = (
        (ROOT / "pyproject.toml").read_text("utf-8").partition('entry-points."mlflow.tracking_store"]\n')[2]
    )
    (plugin / "entry_points.txt").write_text(
        "[mlflow.tracking_store]\n" + declared.partition("\n")[0].replace('"', "")
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(plugin.parent), str(ROOT)]),
        "MLFLOW_TRACKING_URI": "telemetry://./logs",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    program = Path(__file__).parent / "programs" / "use_mlflow.py"
    done = subprocess.run(
        [sys.executable, program, place, *map(str, PLACES)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=longer(200, 900),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(longer(240, 1_000))
def test_ten_scripts_find_what_the_file_store_finds(found):
    assert found["plugin"] == "TelemetryStore"
    assert found["ours"]["runs"].keys() == found["theirs"]["runs"].keys()
    for name, theirs in found["theirs"]["runs"].items():
        assert found["ours"]["runs"][name] == theirs, name
    assert found["ours"] == found["theirs"]


def test_a_kill_loses_nothing_that_was_acknowledged(found, record_property):
    kills = found["kills"]

    assert [kill["signal"] for kill in kills] == [signal.SIGKILL] * len(PLACES)
    assert [kill["missing"] for kill in kills] == [[]] * len(PLACES)
    assert all(kill["continued"] for kill in kills)
    acknowledged = sum(kill["acknowledged"] for kill in kills)
    record_property("measured", f"{len(kills)} kills, {acknowledged} calls acknowledged, 0 lost")


def test_a_kill_while_a_run_is_made_leaves_no_records_without_a_run(found):
    made = found["creations"]

    assert made["places"] > 5
    assert made["without"] == []
    assert {tags["mlflow.runName"].split()[0] for tags in made["found"]} == {"begun"}


def test_input_that_no_script_means_harms_no_other_run(found):
    odd = found["odd"]

    assert odd["found"] == [[2_000_000, [11, 2_000_000]]]
    assert odd["params"] == {}
    assert odd["steps"] == [2**63 - 1, 0, 1, 2]
    assert odd["folders"] == [".mlflow", "damaged", "file", "n" * 10, "ours", "removed", "zz-copy"]
    assert odd["full"] == 0
    assert odd["moved"]
    assert "step must be a 64-bit integer" in odd["refused"]["huge"]
    assert "no readable start" in odd["refused"]["damaged"]
    assert "no readable start" in odd["refused"]["removed"]
    assert "cannot be written" in odd["refused"]["file"]


def test_several_processes_write_one_run(found, place):
    assert found["writers"]["codes"] == [0, 0, 0]
    assert found["writers"]["counts"] == [100] * 4
    records = read_records(place / "logs" / "several-writers")
    assert [record["seq"] for record in records] == list(range(len(records)))


def test_the_runs_are_run_folders(found, place):
    logs = place / "logs"
    resumed = read_manifest(logs / "resumed")

    assert [session.status for session in resumed.sessions] == ["finished", "stopped"]
    assert resumed.config is not None
    assert resumed.config["late"] == "True"
    assert resumed.evaluations["loss"].last == 0.5
    assert work_out_status(read_manifest(logs / "broken"), 0.0).name == "failed"
    assert read_manifest(logs / "tags").tags == ("first=1", "a=2", f"long={'l' * 100}")
    assert read_manifest(logs / "deleted-0").project is None
    assert json.loads((logs / "deleted-0" / "labels.json").read_text())["archived"]
    assert not json.loads((logs / "deleted-1" / "labels.json").read_text())["archived"]
    steps = [record for record in read_run(logs / "history").records if record["event"] == "step"]
    assert [record["loss"] for record in steps[:20]] == [1 / (step + 1) for step in range(20)]
    with (logs / "history" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["event"] == "step"]
    assert [row["loss"] for row in rows if row["loss"]] == [
        str(record["loss"]) for record in steps if "loss" in record
    ]
    unicode = next(folder for folder in logs.iterdir() if read_or_none(folder) == "größe 😀")
    assert unicode.parent == logs
    assert (logs / "artifacts" / "artifacts" / "notes" / "hello.txt").read_text() == "hello"


def test_importers_do_not_take_it_for_a_store_of_mlflow(found, place):
    assert not find_sources(place / "logs").runs


def test_the_files_of_a_run_are_never_where_its_records_say(found):
    assert found["stranger"] == {"runs": ["named"], "listed": [], "left": ["file"]}


def test_secrets_are_masked_wherever_they_are_and_what_is_read_back_is_whole(found, place):
    secrets = ("abc-not-random", "pass-word", "ghp_a1B2")
    files = [path for path in (place / "logs").rglob("*") if path.is_file()]

    assert not [
        path
        for path in files
        if any(secret in path.name + path.read_text("utf-8", "replace") for secret in secrets)
    ]
    assert found["secrets"]["values"] == [0.5]
    assert found["secrets"]["json"] == [["mlflow_colspec", "password"]] * 3
    assert with_event(read_records(place / "logs" / found["secrets"]["folder"]), "end")


def test_a_wrong_address_is_named(found):
    assert "telemetry://./logs" in found["bad uri"]


def read_or_none(folder: Path) -> str | None:
    return read_manifest(folder).project if (folder / "run.json").exists() else None
