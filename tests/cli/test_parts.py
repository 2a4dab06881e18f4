"""Commands take a run and its parts as one run, and say what a part is."""

import json

import pytest

from tests.two_nodes import bring_together, write_two_nodes
from toolkit.telemetry.cli.main import main


@pytest.fixture
def two_nodes(monkeypatch, tmp_path):
    return write_two_nodes(monkeypatch, tmp_path / "a", tmp_path / "b", steps=150)


@pytest.mark.parametrize("command", [["show"], ["show", "--errors"], ["time"], ["doctor"]], ids=" ".join)
def test_a_part_alone_is_named_as_what_it_is(two_nodes, capsys, command):
    _, part = two_nodes

    assert main([*command, str(part)]) != 0
    assert (
        f"{part} is part of run on node A: 2 ranks, 2 to 3; rank 0's folder has the run"
        in capsys.readouterr().err
    )


def test_the_newest_run_of_a_directory_is_never_a_part(two_nodes, capsys):
    whole, part = two_nodes
    bring_together(part, whole.parent)

    assert main(["show", "--errors", str(whole.parent)]) == 0
    assert capsys.readouterr().out.startswith("run: ")
    assert main(["doctor", str(whole.parent), "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == ["run"]


def test_the_doctor_finds_a_slow_rank_on_another_node(two_nodes, capsys):
    whole, part = two_nodes
    bring_together(part, whole.parent)

    main(["doctor", str(whole)])

    assert "Rank 3" in capsys.readouterr().out


def test_a_repair_of_the_run_repairs_its_parts(two_nodes, capsys):
    whole, part = two_nodes
    moved = bring_together(part, whole.parent)

    assert main(["repair", str(whole)]) == 0

    said = capsys.readouterr().out
    assert f"{whole}: 0 records recovered" in said
    assert f"{moved}: 0 records recovered" in said
