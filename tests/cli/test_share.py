"""`telemetry export --to zip` makes one zip of a run, says what is in it, and shows it first where asked."""

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
    assert main(["export", "--to", "zip", str(folder.parent)]) == 0

    said = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "shared-run.zip"]
    records = len((folder / "metrics.jsonl").read_bytes().splitlines())
    assert f"shared-run/metrics.jsonl  {records} records" in said
    assert "config/output_dir (1)" in said
    with zipfile.ZipFile(tmp_path / "shared-run.zip") as archive:
        assert archive.testzip() is None
        assert not any(b"zacharias" in archive.read(name) for name in archive.namelist())


def test_a_preview_writes_nothing_and_does_not_command_the_terminal(folder, tmp_path, capsys):
    assert main(["export", "--to", "zip", str(folder), "--preview", "--include", "text"]) == 0

    said = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert "Nothing was written" in said
    assert "\x1b" not in said
    assert "\x07" not in said


def test_texts_are_included_on_request(folder):
    assert main(["export", "--to", "zip", str(folder), "--include", "text", "-o", "x.zip"]) == 0
    with zipfile.ZipFile("x.zip") as archive:
        records = archive.read("greyjacket/metrics.jsonl")

    assert b"acme/secret-7b" in records
    assert b"a photo of zacharias" in records
    assert b"/home/" not in records


def test_failures_are_reported_and_only_an_earlier_zip_is_replaced(folder, tmp_path, capsys):
    def share(*more):
        return main(["export", str(folder), "--to", "zip", *map(str, more)])

    (tmp_path / "mine.zip").write_text("mine")
    (tmp_path / "link.zip").symlink_to(tmp_path / "nowhere.zip")
    for name in ("mine.zip", "link.zip"):
        assert share("--out", tmp_path / name) == share("--out", tmp_path / name, "--force") == 2
    assert (share(), share(), share("--force")) == (0, 2, 0)
    assert share("--metrics", "*") == main(["export", str(folder), "--to", "csv", "--preview"]) == 2
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("/etc/hostname")
    assert share("--out", "half.zip") == 2

    said = capsys.readouterr().err
    reasons = (
        "exists already",
        "was not written by",
        "symbolic link",
        "--metrics is only for",
        "--preview is only for",
    )
    assert [reason for reason in reasons if reason not in said] == []
    assert (tmp_path / "mine.zip").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "link.zip",
        "logs",
        "mine.zip",
        "shared-run.zip",
    ]
