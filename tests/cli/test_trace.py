"""`telemetry export --to trace` writes a file that a viewer opens."""

from __future__ import annotations

import pytest

from tests.timing.span_run import write_span_run
from tests.timing.trace_checker import check_trace, slices
from toolkit.telemetry.cli.main import main


@pytest.fixture
def folder(tmp_path):
    return write_span_run(tmp_path / "logs", "greyjacket", steps=20)


def test_the_trace_of_the_newest_run_is_written_here(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["export", "--to", "trace", str(folder.parent)]) == 0
    written = tmp_path / "greyjacket-trace.json"
    assert slices(check_trace(written.read_bytes()))
    assert "greyjacket-trace.json" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["greyjacket-trace.json", "logs"]


def test_the_trace_goes_where_it_is_asked_to(folder, tmp_path, capfdbinary):
    assert main(["export", "--to", "trace", str(folder), "-o", str(tmp_path / "t.json")]) == 0
    capfdbinary.readouterr()
    assert main(["export", "--to", "trace", str(folder), "-o", "-"]) == 0

    assert check_trace((tmp_path / "t.json").read_bytes()) == check_trace(capfdbinary.readouterr().out)
