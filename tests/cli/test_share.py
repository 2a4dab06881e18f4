"""`telemetry share` makes one zip of a run, says what is in it, and shows it first where asked."""

from __future__ import annotations

import zipfile

import pytest

from tests.project.markdown import ROOT, blocks
from tests.telemetry.logged import make_logger
from toolkit.cli.main import main

DOCUMENT = ROOT / "docs" / "privacy.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = make_logger(tmp_path / "logs", "greyjacket", csv=True, log_every=1)
    log.log_start(
        config={"output_dir": "/home/zacharias/acme/out", "base_model": "acme/secret-7b", "lr": 1e-4}
    )
    for step in range(10):
        log.log_step(step, train_loss=1 / (step + 1))
    log.log_sample(9, "samples/step_9.png", prompt="a photo of zacharias")
    log.close()
    return log.run_folder


def test_the_newest_run_is_shared_into_this_folder(folder, tmp_path, capsys):
    assert main(["share", str(folder.parent)]) == 0

    said = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["greyjacket-shared.zip", "logs"]
    assert "greyjacket-shared.zip" in said
    # At least: the description of the machine is a record of its own if it took long.
    records = len((folder / "metrics.jsonl").read_bytes().splitlines())
    assert records >= 13
    assert f"greyjacket/metrics.jsonl  {records} records" in said
    assert "config/output_dir (1)" in said
    with zipfile.ZipFile(tmp_path / "greyjacket-shared.zip") as archive:
        assert archive.testzip() is None
        assert not any(b"zacharias" in archive.read(name) for name in archive.namelist())


def test_a_preview_writes_nothing_and_shows_what_no_program_can_judge(folder, tmp_path, capsys):
    assert main(["share", str(folder), "--preview"]) == 0

    said = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert "Nothing was written" in said
    assert "sample/prompt: a photo of <user-1>" in said
    assert "zacharias" not in said


def test_a_file_that_is_there_is_not_overwritten(folder, tmp_path, capsys):
    (tmp_path / "mine.zip").write_text("mine")

    assert main(["share", str(folder), "-o", str(tmp_path / "mine.zip")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "mine.zip").read_text() == "mine"


def test_failures_are_reported(folder, tmp_path, capsys):
    assert main(["share", str(tmp_path / "nothing")]) == 2
    assert main(["share", str(folder), "-o", str(tmp_path / "no" / "such" / "x.zip")]) == 2
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("/etc/hostname")
    assert main(["share", str(folder)]) == 2

    said = capsys.readouterr().err
    assert "no run found" in said
    assert "No such file or directory" in said
    assert "symbolic link" in said


def test_an_organisation_of_ones_own_may_be_allowed(folder, tmp_path, capsys):
    assert main(["share", str(folder), "--allow", "acme", "-o", "x.zip"]) == 0
    with zipfile.ZipFile("x.zip") as archive:
        assert b"acme/secret-7b" in archive.read("greyjacket/metrics.jsonl")


def test_names_in_a_run_do_not_command_the_terminal(tmp_path, capsys):
    log = make_logger(tmp_path / "logs", "x")
    log.log_event("note", **{"\x1b[31mred": "\x1b]0;title\x07 by zoë@acme.example"})
    log.close()

    assert main(["share", str(log.run_folder), "--preview"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said


def test_the_document_names_every_kind_that_is_replaced():
    text = DOCUMENT.read_text(encoding="utf-8")

    for kind in ("path", "user", "host", "email", "ip", "mac", "device", "model", "url"):
        assert f"`<{kind}-1>`" in text
    assert blocks(DOCUMENT, "python")
