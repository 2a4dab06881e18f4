"""Nothing private that is planted in a run is in the bundle that it is shared as, and what is harmless still is."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from tests.fork_server import run_python
from tests.lengths import in_make_faults, longer
from tests.privacy.planted import ENVIRON, HARMLESS, PLANTED, USER, found_in, leaks_in
from tests.privacy.planted_run import ERRORS_A_RUN, write_notes
from toolkit.cli.main import main
from toolkit.runfolder.csv_table import SHORT, columns_for
from toolkit.runfolder.reader import read_from

ROOT = Path(__file__).resolve().parents[2]
IN_A_LINE = "planted-In-A-Line-4711"

SECRETS = ("environment", "jwt", "keyed", "pem", "token", "wandb", "webhook")
"""Kinds that are masked in the run's own files too."""


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
    """What `telemetry share` made of each of them: the members of its zip by name, and the zip itself."""
    target = tmp_path_factory.mktemp("shared")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRON.items():
            patch.setenv(name, value)
        others = sorted(set(log_dir.iterdir()) - {main_run(log_dir)})
        for number, folder in enumerate([main_run(log_dir), *others[: longer(2, None)]]):
            path = target / f"{number}.zip"
            assert main(["share", str(folder), "-o", str(path)]) == 0
            with zipfile.ZipFile(path) as archive:
                members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
            found.append({**members, "the zip": path.read_bytes()})
    return found


@pytest.fixture(scope="module")
def members(bundles):
    """The members of the bundle of the run that has more than errors."""
    return next(bundle for bundle in bundles if "labels.json" in bundle)


def test_there_are_enough_of_them():
    assert len(PLANTED) >= 200
    assert len(HARMLESS) >= 100


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
    record_property("measured", f"{len(PLANTED)} values planted, {len(bundles)} bundles, {len(leaked)} found")


def test_the_bundle_holds_nothing_else(members):
    assert set(members) - {"the zip"} == {
        *("metrics.jsonl", "metrics.csv", "run.json", "labels.json", "ranks/00001.jsonl"),
        *("redactions.json", "README.txt"),
    }


def test_every_harmless_value_survives_wherever_it_was(members):
    texts = texts_by_field(members["metrics.jsonl"])

    assert set(HARMLESS) <= set(texts("step", "remark"))
    assert set(HARMLESS) <= set(texts("eval", "remark"))
    assert {f"a photo of {text} in the rain" for text in HARMLESS} <= set(texts("sample", "prompt"))
    assert {f"say {text}" for text in HARMLESS} <= set(texts("completion", "prompt"))
    assert set(HARMLESS) <= {attributes["remark"] for attributes in texts("span", "attributes")}
    (config,) = texts("harmless_config", "config")
    assert list(config[0].values()) == HARMLESS
    (given,) = texts("harmless_keys", "given")
    assert list(given[0]) == HARMLESS
    assert [config["list"] for config in texts("start", "config")][-1] == HARMLESS
    # On a slow machine a record of its own describes the machine, once that is known.
    (command_line,) = [*texts("start", "command_line"), *texts("environment", "command_line")]
    assert command_line[-len(HARMLESS) :] == HARMLESS
    assert [text for text in HARMLESS if text not in json.loads(members["labels.json"])["notes"]] == []


@in_make_faults
def test_every_harmless_value_survives_in_errors_and_lines_of_source(bundles):
    texts = texts_by_field(b"".join(bundle["metrics.jsonl"] for bundle in bundles))
    messages = {text: f"could not use {text}: stopped" for text in HARMLESS}
    # The frame of whatever started the process may have no source.
    lines = {frame.get("source") for frames in texts("error", "frames") for frame in frames}
    output = {line for printed in texts("error", "output") for line in printed}

    assert [
        text for text in HARMLESS if f"ValueError: {messages[text]}" not in texts("error", "message")
    ] == []
    assert [text for text in HARMLESS if f"raise ValueError({messages[text]!r})" not in lines] == []
    # After the last one of a run nothing failed, so its output is not repeated.
    last = [text for n, text in enumerate([*(v for _, v in PLANTED), *HARMLESS], 1) if n % ERRORS_A_RUN == 0]
    repeated = [text for text in HARMLESS[:-1] if text not in last]
    assert [text for text in repeated if f"at {messages[text]} now" not in output] == []


def texts_by_field(data):
    records = [json.loads(line) for line in data.splitlines()]

    def texts(event, field):
        return [record[field] for record in records if record["event"] == event and record.get(field)]

    return texts


def test_the_bundle_is_still_a_run(members, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(members["metrics.jsonl"])

    chunk = read_from(path)
    table = pd.read_csv(io.BytesIO(members["metrics.csv"]), low_memory=False)

    assert chunk.bad_count == 0
    has_row = columns_for(SHORT).has_row
    assert [record["seq"] for record in chunk.records if has_row(record)] == table["seq"].tolist()
    assert (table["event"] == "step").sum() == len(PLANTED) + len(HARMLESS)
    assert table["train_loss"].dropna().eq(0.5).all()


def test_the_list_says_how_much_of_each_kind_was_replaced_and_where(members):
    listed = json.loads(members["redactions.json"])
    fields = {(place["kind"], place["field"]) for place in listed["where"]}

    kinds = {"path", "user", "host", "email", "ip", "mac", "device", "model", "secret"}
    assert kinds <= set(listed["replaced"])
    assert {(kind, "remark") for kind in kinds - {"secret"}} <= fields
    assert {("path", "attributes/remark"), ("path", "command_line"), ("secret", "notes")} <= fields
    assert sum(listed["replaced"].values()) == sum(place["count"] for place in listed["where"])
    assert USER not in json.dumps(listed)
