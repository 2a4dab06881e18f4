"""The zip that a run is shared as: it opens everywhere, and its making never follows where a folder leads it."""

from __future__ import annotations

import json
import zipfile

import pandas as pd
import pytest

from tests.telemetry.logged import make_logger
from toolkit.telemetry.privacy.bundle import RunBundle
from toolkit.telemetry.runfolder.labels import Labels, read_labels, write_labels
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.table.columns import WITHOUT_ROWS


@pytest.fixture
def folder(tmp_path):
    options = {"tags": ("zacharias",), "project": "zacharias-llm", "csv": True, "log_every": 1}
    log = make_logger(tmp_path / "logs", "zacharias 7b", **options)
    log.log_start(config={"output_dir": "/home/zacharias/acme/out", "lr": 1e-4})
    for step in range(5):
        log.log_step(step, train_loss=1 / (step + 1), lr=1e-4)
    log.log_step(5, train_loss=float("nan"))
    log.log_event("note", text="=HYPERLINK(1) of an orchid")
    log.close()
    write_labels(log.run_folder, Labels(tags=("orchid",), notes="ask zacharias@acme.example"))
    return log.run_folder


def unpack(bundle, tmp_path):
    target = tmp_path / "bundle.zip"
    contents = bundle.write(target)
    with zipfile.ZipFile(target) as archive:
        archive.extractall(tmp_path / "unpacked")
    return contents, tmp_path / "unpacked" / contents.folder


def test_the_bundle_is_a_run_that_opens_in_the_reader_and_in_pandas(folder, tmp_path):
    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    chunk = read_from(unpacked / "metrics.jsonl")
    table = pd.read_csv(unpacked / "metrics.csv")
    manifest = read_manifest(unpacked)

    with_rows = [record for record in chunk.records if record["event"] not in WITHOUT_ROWS]
    assert (chunk.bad_count, len(with_rows)) == (0, len(table))
    assert table[table["event"] == "step"]["train_loss"].head(2).tolist() == [1.0, 0.5]
    (record,) = [record for record in chunk.records if record.get("non_finite")]
    assert (record["train_loss"], record["non_finite"]) == (None, {"train_loss": "NaN"})
    assert (manifest.display_name, manifest.latest.status, manifest.latest.host) == (
        "shared-run",
        "finished",
        "",
    )
    assert {path.name for path in unpacked.iterdir()} == set(contents.members)
    assert contents.left_out == ("labels.json",)
    assert not any(b"zacharias" in path.read_bytes() for path in unpacked.iterdir())


def test_texts_are_included_on_request_and_redacted(folder, tmp_path):
    _, unpacked = unpack(RunBundle(folder, include=["text"]), tmp_path)
    labels, manifest = read_labels(unpacked), read_manifest(unpacked)
    records = read_from(unpacked / "metrics.jsonl").records

    assert (labels.tags, labels.notes) == (("orchid",), "ask <email>")
    assert (manifest.display_name, manifest.project) == ("zacharias 7b", "zacharias-llm")
    assert records[0]["config"]["output_dir"] == "<path>"
    assert "'=HYPERLINK(1) of an orchid" in pd.read_csv(unpacked / "metrics.csv")["text"].tolist()


def test_a_zip_reveals_neither_when_nor_by_whom_it_was_made(folder, tmp_path):
    for name in ("one.zip", "two.zip"):
        RunBundle(folder).write(tmp_path / name)

    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        entries = archive.infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {(entry.create_system, entry.external_attr, entry.comment) for entry in entries} == {
        (3, 0o644 << 16, b"")
    }
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_what_is_no_record_is_left_out_and_counted(folder, tmp_path):
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"not JSON, said zacharias\n" + b"x" * 1_200_000 + b"\n")
        # A reader sees the last of two values.
        file.write(b'{"event":"step","time":1.0,"seq":900,"session":1,"x":"/home/zacharias/y","x":1.0}\n')
        file.write(b'{"event":"torn by zacharias","seq":9')

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert contents.lines_left_out == 2
    assert b"zacharias" not in (unpacked / "metrics.jsonl").read_bytes()
    assert read_from(unpacked / "metrics.jsonl").records[-1]["x"] == 1.0
    assert json.loads((unpacked / "left_out.json").read_text())["lines"] == 2


def test_records_of_other_ranks_are_included_and_links_are_not_followed(folder, tmp_path):
    (folder / "ranks").mkdir()
    (folder / "ranks" / "00001.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes())
    secret = tmp_path / "secret.txt"
    secret.write_text('{"event":"x","seq":1,"text":"what no one may see"}\n')

    contents, unpacked = unpack(RunBundle(folder), tmp_path)
    assert contents.records["ranks/00001.jsonl"] == contents.records["metrics.jsonl"]
    assert b"zacharias" not in (unpacked / "ranks" / "00001.jsonl").read_bytes()

    (folder / "ranks" / "00002.jsonl").symlink_to(secret)
    assert RunBundle(folder).preview().records == contents.records

    (folder / "ranks").rename(tmp_path / "elsewhere")
    (folder / "ranks").symlink_to(tmp_path / "elsewhere")
    assert list(RunBundle(folder).preview().records) == ["metrics.jsonl"]


def test_other_files_are_left_out_and_only_ours_are_named(folder, tmp_path):
    for name in ("samples", "tensorboard", "patients-of-dr-smith"):
        (folder / name).mkdir()
    (folder / "control.json").write_text("{}")
    (folder / "smith.csv").write_text("x")
    (folder / "run.json").write_text("{ zacharias")

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert contents.left_out == (
        *("run.json, which cannot be read", "control.json", "labels.json", "samples", "tensorboard"),
        "2 other files or folders",
    )
    assert "smith" not in (unpacked / "README.txt").read_text()


def test_code_is_included_on_request_only(folder, tmp_path):
    (folder / "code" / "1").mkdir(parents=True)
    (folder / "code" / "1" / "train.py").write_text('out = "/home/zacharias/acme/out"\nlr = 1\n')
    (folder / "code" / "1.json").write_text(
        '{"session": 1, "files": {"train.py": "1/train.py", "x": "../../run.json"}}'
    )

    # As versions before kept it.
    (folder / "code" / "1.diff").write_text(
        '--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-password = "hunter2"\n+lr = 1\n'
    )
    without = RunBundle(folder).preview()
    contents, unpacked = unpack(RunBundle(folder, include=["code"]), tmp_path)

    assert "code" in without.left_out
    assert not any("train.py" in name for name in without.members)
    assert {"code/1.json", "code/1/train.py"} <= set(contents.members)
    assert "code" not in contents.left_out
    text = (unpacked / "code" / "1" / "train.py").read_text()
    assert "lr = 1" in text
    assert "zacharias" not in text
    assert (unpacked / "code" / "1.diff").read_text().endswith('-password = "***"\n+lr = 1\n')


def test_packages_of_ones_own_are_not_shared(folder, tmp_path):
    record = {"event": "environment", "time": 1.0, "packages": {"torch": "2.6.0", "acme-secret-model": "1.0"}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert '"packages":{"torch":"2.6.0"}' in (unpacked / "metrics.jsonl").read_text()
    assert contents.fields["packages"] >= 1


def test_a_preview_says_what_the_bundle_then_holds(folder, tmp_path):
    previewed = RunBundle(folder).preview()

    assert previewed == unpack(RunBundle(folder), tmp_path)[0]
    assert {"config/output_dir", "text", "tags", "project"} <= set(previewed.fields)
