"""`telemetry trace` writes a file that a viewer opens."""

from __future__ import annotations

import os

import pytest

from tests.timing.span_run import write_span_run
from tests.timing.trace_checker import check_trace, slices
from toolkit.telemetry.cli.main import main


@pytest.fixture
def folder(tmp_path):
    return write_span_run(tmp_path / "logs", "greyjacket", steps=20)


def test_the_trace_of_the_newest_run_is_written_here(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["trace", str(folder.parent)]) == 0
    written = tmp_path / "greyjacket-trace.json"
    assert slices(check_trace(written.read_bytes()))
    assert "greyjacket-trace.json" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["greyjacket-trace.json", "logs"]


def test_the_trace_goes_where_it_is_asked_to(folder, tmp_path, capfdbinary):
    assert main(["trace", str(folder), "-o", str(tmp_path / "t.json")]) == 0
    capfdbinary.readouterr()
    assert main(["trace", str(folder), "-o", "-"]) == 0

    assert check_trace((tmp_path / "t.json").read_bytes()) == check_trace(capfdbinary.readouterr().out)


def test_failures_are_reported(folder, tmp_path, capsys):
    assert main(["trace", str(tmp_path / "nothing")]) == 2
    assert main(["trace", str(folder), "-o", str(tmp_path / "no" / "such" / "t.json")]) == 2

    said = capsys.readouterr().err
    assert "no run found" in said
    assert "cannot write" in said


def test_a_link_under_the_name_of_the_half_written_file_is_not_followed(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / f".t.json.{os.getpid()}.tmp").symlink_to(victim)

    assert main(["trace", str(folder), "-o", "t.json"]) == 0
    assert victim.read_text() == "untouched"
    assert (tmp_path / "t.json").stat().st_mode & 0o077 == 0
