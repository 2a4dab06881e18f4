"""`telemetry share` makes one zip of a run, says what is in it, and shows it first where asked."""

from __future__ import annotations

import zipfile

import pytest

from tests.telemetry.logged import make_logger
from toolkit.telemetry.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = make_logger(tmp_path / "logs", "greyjacket", csv=True, log_every=1)
    log.log_start(
        config={"output_dir": "/home/zacharias/acme/out", "base_model": "acme/secret-7b", "lr": 1e-4}
    )
    log.log_sample(9, "samples/step_9.png", prompt="a photo of zacharias")
    log.log_event("note", **{"\x1b[31mred": "\x1b]0;title\x07 by zoë@acme.example"})
    log.close()
    return log.run_folder


def test_the_newest_run_is_shared_into_this_folder(folder, tmp_path, capsys):
    assert main(["share", str(folder.parent)]) == 0

    said = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "shared-run.zip"]
    records = len((folder / "metrics.jsonl").read_bytes().splitlines())
    assert f"shared-run/metrics.jsonl  {records} records" in said
    assert "config/output_dir (1)" in said
    with zipfile.ZipFile(tmp_path / "shared-run.zip") as archive:
        assert archive.testzip() is None
        assert not any(b"zacharias" in archive.read(name) for name in archive.namelist())


def test_a_preview_writes_nothing_and_does_not_command_the_terminal(folder, tmp_path, capsys):
    assert main(["share", str(folder), "--preview", "--with-text"]) == 0

    said = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert "Nothing was written" in said
    assert "\x1b" not in said
    assert "\x07" not in said


def test_texts_and_models_of_an_organisation_are_included_on_request(folder):
    assert main(["share", str(folder), "--allow", "acme", "--with-text", "-o", "x.zip"]) == 0
    with zipfile.ZipFile("x.zip") as archive:
        records = archive.read("greyjacket/metrics.jsonl")

    assert b"acme/secret-7b" in records
    assert b"a photo of zacharias" in records
    assert b"/home/" not in records


def test_failures_are_reported_and_a_file_that_exists_is_not_overwritten(folder, tmp_path, capsys):
    (tmp_path / "mine.zip").write_text("mine")
    assert main(["share", str(folder), "-o", str(tmp_path / "mine.zip")]) == 2
    assert main(["share", str(tmp_path / "nothing")]) == 2
    assert main(["share", str(folder), "-o", str(tmp_path / "no" / "such" / "x.zip")]) == 2
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("/etc/hostname")
    assert main(["share", str(folder)]) == 2

    said = capsys.readouterr().err
    for reason in ("already exists", "no run found", "No such file or directory", "symbolic link"):
        assert reason in said
    assert (tmp_path / "mine.zip").read_text() == "mine"
