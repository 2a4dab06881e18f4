"""The zip that a run is shared as: it opens everywhere, and its making never follows where a folder leads it."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile

import pandas as pd
import pytest

from tests.lengths import in_make_faults
from tests.telemetry.logged import make_logger
from toolkit.privacy.bundle import RunBundle
from toolkit.runfolder.labels import Labels, read_labels, write_labels
from toolkit.runfolder.manifest import read_manifest
from toolkit.runfolder.reader import read_from
from toolkit.runs.sources.local_store import LocalStore


def log_a_run(log_dir, name="greyjacket", **options):
    log = make_logger(log_dir, name, csv=True, log_every=1, **options)
    log.log_start(config={"output_dir": "/home/zacharias/acme/out", "lr": 1e-4})
    for step in range(5):
        log.log_step(step, train_loss=1 / (step + 1), lr=1e-4)
    log.log_step(5, train_loss=float("nan"))
    log.log_event("note", text="zacharias was here")
    return log


@pytest.fixture
def folder(tmp_path):
    log = log_a_run(tmp_path / "logs")
    log.close()
    return log.run_folder


def unpack(bundle, tmp_path):
    target = tmp_path / "bundle.zip"
    contents = bundle.write(target)
    with zipfile.ZipFile(target) as archive:
        archive.extractall(tmp_path / "unpacked")
    return contents, tmp_path / "unpacked" / contents.folder


def test_the_bundle_opens_in_the_reader_in_pandas_and_in_the_dashboard(folder, tmp_path):
    _, unpacked = unpack(RunBundle(folder), tmp_path)

    chunk = read_from(unpacked / "metrics.jsonl")
    table = pd.read_csv(unpacked / "metrics.csv")
    store = LocalStore([unpacked.parent], cache_dir=None)
    (card,) = store.list_runs().cards

    assert chunk.bad_count == 0
    assert len(chunk.records) == len(table)
    assert table[table["event"] == "step"]["train_loss"].head(2).tolist() == [1.0, 0.5]
    assert card.name == "greyjacket"
    assert card.status.name == "finished"
    assert store.refresh(card.key).records == len(chunk.records)
    assert store.series(card.key, "train_loss").total == 6


def test_nan_and_infinity_are_kept(folder, tmp_path):
    _, unpacked = unpack(RunBundle(folder), tmp_path)

    (record,) = [r for r in read_from(unpacked / "metrics.jsonl").records if r.get("non_finite")]

    assert (record["train_loss"], record["non_finite"]) == (None, {"train_loss": "NaN"})


def test_a_name_that_a_late_record_gives_away_is_taken_out_of_the_early_ones(folder, tmp_path):
    log = make_logger(tmp_path / "logs", "late")
    log.log_event("early", text="trained by zacharias")
    log.log_event("late", text="/home/zacharias/x")
    log.close()

    _, unpacked = unpack(RunBundle(log.run_folder), tmp_path)

    assert b"zacharias" not in (unpacked / "metrics.jsonl").read_bytes()


def test_the_name_of_the_run_is_redacted_wherever_it_is(tmp_path):
    log = log_a_run(tmp_path / "logs", "zacharias 7b", tags=("zacharias",), project="zacharias-llm")
    log.close()

    contents, unpacked = unpack(RunBundle(log.run_folder), tmp_path)
    manifest = read_manifest(unpacked)

    assert contents.folder == "user-1-7b"
    assert (manifest.name, manifest.display_name) == ("user-1-7b", "<user-1> 7b")
    assert (manifest.tags, manifest.project) == (("<user-1>",), "<user-1>-llm")
    assert (manifest.latest.host, manifest.latest.journal) == ("<host-1>", None)


def test_the_labels_of_people_are_redacted_and_still_read(folder, tmp_path):
    write_labels(
        folder,
        Labels(display_name="for zacharias", tags=("zacharias", "best"), notes="ask zacharias@acme.example"),
    )

    _, unpacked = unpack(RunBundle(folder), tmp_path)
    labels = read_labels(unpacked)

    assert (labels.display_name, labels.tags) == ("for <user-1>", ("<user-1>", "best"))
    assert labels.notes == "ask <email-1>"


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
        file.write(
            b"not JSON, said zacharias\n" + b"x" * 1_200_000 + b"\n" + b'{"event":"torn by zacharias","seq":9'
        )

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert contents.lines_left_out == 2
    assert b"zacharias" not in (unpacked / "metrics.jsonl").read_bytes()
    assert json.loads((unpacked / "redactions.json").read_text())["lines_left_out"] == 2


def test_a_text_behind_a_name_that_comes_twice_is_not_carried_along(folder, tmp_path):
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"step","time":1.0,"seq":900,"session":1,"x":"/home/zacharias/y","x":1.0}\n' * 2)

    _, unpacked = unpack(RunBundle(folder), tmp_path)

    assert b"zacharias" not in (unpacked / "metrics.jsonl").read_bytes()
    assert read_from(unpacked / "metrics.jsonl").records[-1]["x"] == 1.0


def test_records_of_other_ranks_are_taken_along_and_links_are_not_followed(folder, tmp_path):
    (folder / "ranks").mkdir()
    (folder / "ranks" / "00001.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes())
    secret = tmp_path / "secret.txt"
    secret.write_text('{"event":"x","seq":1,"text":"what no one may see"}\n')

    contents, unpacked = unpack(RunBundle(folder), tmp_path)
    assert contents.records["ranks/00001.jsonl"] == contents.records["metrics.jsonl"]
    assert b"zacharias" not in (unpacked / "ranks" / "00001.jsonl").read_bytes()

    (folder / "ranks" / "00002.jsonl").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"):
        RunBundle(folder)


def test_a_folder_of_ranks_that_leads_elsewhere_is_passed_over(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "00001.jsonl").write_text('{"event":"x","seq":1}\n')
    (folder / "ranks").symlink_to(tmp_path / "elsewhere")

    contents, _ = unpack(RunBundle(folder), tmp_path)

    assert list(contents.records) == ["metrics.jsonl"]


def test_other_files_are_left_out_and_only_ours_are_named(folder, tmp_path):
    for name in ("samples", "tensorboard", "patients-of-dr-smith"):
        (folder / name).mkdir()
    (folder / "control.json").write_text("{}")
    (folder / "smith.csv").write_text("x")

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert contents.left_out == ("control.json", "samples", "tensorboard", "2 other files or folders")
    assert "smith" not in (unpacked / "README.txt").read_text()
    assert {path.name for path in unpacked.iterdir()} == {
        *("metrics.jsonl", "metrics.csv", "run.json", "redactions.json", "README.txt")
    }


def test_a_manifest_or_labels_that_cannot_be_read_are_left_out_and_named(folder, tmp_path):
    (folder / "run.json").write_text("{ zacharias")
    (folder / "labels.json").write_text('{"tags": "zacharias"}')

    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert contents.left_out[:2] == ("run.json, which cannot be read", "labels.json, which cannot be read")
    assert not (unpacked / "run.json").exists()


def test_a_resumed_run_is_shared_as_far_as_it_got(tmp_path):
    log = log_a_run(tmp_path / "logs")
    log.flush()
    bundle = RunBundle(log.run_folder)
    log.log_event("note", text="zacharias again, and /home/quentin/x for the first time")
    log.flush()

    contents, unpacked = unpack(bundle, tmp_path)
    log.close()

    assert b"quentin" not in (unpacked / "metrics.jsonl").read_bytes()
    assert contents.records["metrics.jsonl"] == len(read_from(unpacked / "metrics.jsonl").records)


def test_nothing_is_overwritten_and_nothing_left_behind(folder, tmp_path):
    (tmp_path / "there.zip").write_text("mine")
    (tmp_path / "link.zip").symlink_to(tmp_path / "nowhere.zip")
    for name in ("there.zip", "link.zip"):
        with pytest.raises(FileExistsError):
            RunBundle(folder).write(tmp_path / name)

    bundle = RunBundle(folder)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        bundle.write(tmp_path / "half.zip")

    assert (tmp_path / "there.zip").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.zip", "logs", "there.zip"]


def test_a_preview_says_what_the_bundle_then_holds(folder, tmp_path):
    previewed = RunBundle(folder).preview()
    contents, unpacked = unpack(RunBundle(folder), tmp_path)

    assert previewed == contents
    assert {str(path.relative_to(unpacked)) for path in unpacked.rglob("*")} == set(contents.members)
    assert ("note/text", "<user-1> was here") in contents.texts


@in_make_faults
def test_a_long_run_takes_no_more_memory_than_a_short_one(tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    text = "a sentence of a prompt about nothing private, " * 1_000
    with (folder / "metrics.jsonl").open("w") as file:
        for seq in range(400):
            file.write(
                json.dumps({"event": "sample", "time": 1.0, "seq": seq, "prompt": f"{seq} {text}"}) + "\n"
            )

    tracemalloc.start()
    RunBundle(folder).preview()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (folder / "metrics.jsonl").stat().st_size > 18_000_000
    assert peak < 9_000_000


def test_a_table_of_text_is_as_harmless_to_a_spreadsheet_as_the_runs_own(folder, tmp_path):
    log = make_logger(tmp_path / "logs", "formula")
    log.log_event("note", text="=HYPERLINK(1)")
    log.close()

    _, unpacked = unpack(RunBundle(log.run_folder), tmp_path)

    assert (
        "'=HYPERLINK(1)" in pd.read_csv(io.BytesIO((unpacked / "metrics.csv").read_bytes()))["text"].tolist()
    )


def test_a_metric_that_is_called_like_a_model_keeps_its_name_in_keys_and_sentences(tmp_path):
    run = tmp_path / "r"
    run.mkdir()
    step = {"event": "step", "seq": 0, "session": 1, "probe-7/cka-sim2": 0.5}
    finding = {
        "event": "finding",
        "seq": 1,
        "session": 1,
        "message": "probe-7/cka-sim2 of acme-corp/orchid-7b is NaN",
    }
    lines = [json.dumps(record) + "\n" for record in (step, finding)]
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")

    RunBundle(run, environ={}).write(tmp_path / "shared.zip")
    with zipfile.ZipFile(tmp_path / "shared.zip") as archive:
        shared = [json.loads(line) for line in archive.read("r/metrics.jsonl").splitlines()]

    assert shared[0]["probe-7/cka-sim2"] == 0.5
    assert shared[1]["message"] == "probe-7/cka-sim2 of <model-1> is NaN"
