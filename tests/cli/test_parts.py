"""Commands take a run and its parts as one run, and say what a part is."""

import json

import pytest

from tests.two_nodes import bring_together, write_two_nodes
from toolkit.telemetry.cli.main import main


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    return write_two_nodes(monkeypatch, tmp_path / "a", tmp_path / "b", steps=150)


def test_a_part_alone_is_named_as_what_it_is(two_nodes, capsys):
    _, part = two_nodes

    for command in (["show"], ["show", "--errors"], ["time"], ["doctor"]):
        assert main([*command, str(part)]) != 0
        said = capsys.readouterr().err
        assert f"{part} is part of run on node A: 2 ranks, 2 to 3; rank 0's folder has the run" in said


def test_the_newest_run_of_a_directory_is_never_a_part_and_the_doctor_finds_its_slow_rank(two_nodes, capsys):
    whole, part = two_nodes
    bring_together(part, whole.parent)

    assert main(["show", "--errors", str(whole.parent)]) == 0
    assert capsys.readouterr().out.startswith("run: ")
    assert main(["doctor", str(whole.parent), "--json"]) in (0, 1)
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert found["run"] == "run"
    assert any("Rank 3" in finding["message"] for finding in found["findings"])


def test_a_repair_of_the_run_repairs_its_parts(two_nodes, capsys):
    whole, part = two_nodes
    moved = bring_together(part, whole.parent)

    assert main(["repair", str(whole)]) == 0

    said = capsys.readouterr().out
    assert f"{whole}: 0 records recovered" in said
    assert f"{moved}: 0 records recovered" in said
