"""Nothing private that is planted in a run is in the bundle that it is shared as."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from tests.fork_server import run_python
from tests.lengths import longer
from tests.privacy.planted import ENVIRON, HARMLESS, PLANTED, SECRETS, found_in, leaks_in
from tests.privacy.planted_run import write_notes
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.table.columns import SHORT, Columns

ROOT = Path(__file__).resolve().parents[2]
IN_A_LINE = "planted-In-A-Line-4711"


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Folders of real runs, of a process with the planted environment and command line that ended by an error."""
    log_dir = tmp_path_factory.mktemp("planted") / "logs"
    planted = [value for _, value in PLANTED]
    script = "tests.privacy.planted_run"
    finished = run_python(
        ["-m", script, log_dir, *planted, "--harmless", *HARMLESS],
        cwd=ROOT,
        env={**os.environ, **ENVIRON, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert IN_A_LINE in finished.stderr, finished.stderr[-2000:]
    folder = main_run(log_dir)
    write_notes(folder, planted, HARMLESS)
    (folder / "ranks").mkdir()
    shutil.copy(folder / "metrics.jsonl", folder / "ranks" / "00001.jsonl")
    return log_dir


def main_run(log_dir):
    (folder,) = log_dir.glob("run-of-*")
    return folder


@pytest.fixture(scope="module")
def bundles(log_dir, tmp_path_factory):
    """What `telemetry export --to zip` made of each of them: the members of its zip by name, and the zip itself."""
    target = tmp_path_factory.mktemp("shared")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRON.items():
            patch.setenv(name, value)
        others = sorted(set(log_dir.iterdir()) - {main_run(log_dir)})
        for number, folder in enumerate([main_run(log_dir), *others[: longer(2, None)]]):
            path = target / f"{number}.zip"
            assert main(["export", "--to", "zip", str(folder), "-o", str(path)]) == 0
            with zipfile.ZipFile(path) as archive:
                members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
            found.append({**members, "the zip": path.read_bytes()})
    return found


def test_everything_is_in_the_runs_that_are_shared(log_dir):
    """Else nothing would be proved: what is not a secret is in a run's own files as it was logged."""
    records = (main_run(log_dir) / "metrics.jsonl").read_bytes()
    errors = b"".join(path.read_bytes() for path in log_dir.glob("failures-*/metrics.jsonl"))
    notes = (main_run(log_dir) / "labels.json").read_bytes()

    for data in (records, errors):
        assert [value for kind, value in PLANTED if kind not in SECRETS and not found_in(data, value)] == []
        assert [text for text in HARMLESS if not found_in(data, text)] == []
    assert len(leaks_in(notes)) == len(PLANTED)


def test_secrets_are_in_none_of_the_runs_own_files(log_dir, record_property):
    """People's own notes are theirs; everything that a run itself and its mirrors wrote is looked at."""
    files = [path for path in log_dir.rglob("*") if path.is_file() and path.name != "labels.json"]
    leaked = [
        (path.name, kind, value)
        for path in files
        for kind, value in leaks_in(path.name.encode() + path.read_bytes())
        if kind in SECRETS
    ]

    assert leaked == []
    holding = {path.name.partition("_")[0] for path in files if b"torch.nn.functional" in path.read_bytes()}
    assert {"metrics.jsonl", "metrics.csv", "one", "harmless"} <= holding
    assert any("tfevents" in name for name in holding)
    planted = sum(kind in SECRETS for kind, _ in PLANTED)
    record_property("measured", f"{planted} secrets planted, {len(files)} files of runs and mirrors, 0 found")


def test_no_planted_value_is_in_any_member_of_any_bundle(bundles, record_property):
    leaked = [
        (number, name, kind, value)
        for number, bundle in enumerate(bundles)
        for name, data in bundle.items()
        for kind, value in [
            *leaks_in(data),
            *(("line", text) for text in (IN_A_LINE, str(ROOT)) if found_in(data, text)),
        ]
    ]

    assert leaked == []
    assert len(PLANTED) >= 200
    record_property("measured", f"{len(PLANTED)} values planted, {len(bundles)} bundles, {len(leaked)} found")


def test_the_bundle_is_still_a_run(bundles, tmp_path):
    members = bundles[0]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(members["metrics.jsonl"])

    chunk = read_from(path)
    table = pd.read_csv(io.BytesIO(members["metrics.csv"]), low_memory=False)

    assert chunk.bad_count == 0
    has_row = Columns(SHORT).has_row
    assert [record["seq"] for record in chunk.records if has_row(record)] == table["seq"].tolist()
    assert (table["event"] == "step").sum() == len(PLANTED) + len(HARMLESS)
    assert table["train_loss"].dropna().eq(0.5).all()
