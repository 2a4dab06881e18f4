"""`telemetry compare`: settings that differ, last and best values, ours and other tools'."""

from __future__ import annotations

import pytest

from tests.cli.runs import write_run, write_table
from tests.exchange.commands import telemetry
from toolkit.telemetry.cli.main import main


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    place = tmp_path_factory.mktemp("compare")
    write_run(place, "a", [0.5, 0.1, 0.2], config={"train": {"lr": 1e-4, "steps": 3}})
    write_run(place, "b", [0.5, 0.4, 0.3], config={"train": {"lr": 1e-3, "steps": 3}})
    write_table(place / "c" / "results.csv", [0.9, 0.8])
    return place


def test_settings_that_differ_and_last_and_best_values_are_printed(logs, capsys):
    assert main(["compare", str(logs / "a"), str(logs / "b")]) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["a", "b"]
    assert ["learning_rate", "1e-4", "0.001"] in rows
    assert ["train_loss", "0.2", "0.3"] in rows
    assert ["best", "(min)", "0.1", "at", "2", "0.3", "at", "3"] in rows
    assert ["best", "(max)", "0.9", "at", "2", "0.7", "at", "3"] in rows
    assert not [row for row in rows if row[0] == "max_steps"]
    main(["compare", str(logs / "a"), str(logs / "b"), "--all"])
    assert "max_steps" in capsys.readouterr().out


def test_the_json_has_the_documented_fields_and_other_tools_runs(logs, capsys):
    found = telemetry(capsys, "compare", logs / "a", logs / "c")
    assert set(found) == {"runs", "config", "metrics"}
    assert [run["format"] for run in found["runs"]] == ["telemetry", "table"]
    assert all(set(row) == {"name", "values", "same"} for row in found["config"])
    of_c = next(row for row in found["metrics"] if row["name"] == "train/loss")
    assert of_c == {
        "name": "train/loss",
        "goal": "min",
        "same": False,
        "last": [None, 0.8],
        "best": [None, 0.8],
        "best_step": [None, 1],
    }


def test_a_folder_means_all_its_runs_and_one_run_alone_or_none_cannot_be_compared(logs, tmp_path, capsys):
    assert len(telemetry(capsys, "compare", logs)["runs"]) == 3
    for runs, said in (
        ([logs / "b", "--json"], "name another, such as "),
        ([write_run(tmp_path, "alone", [1.0])], "name another"),
        ([logs / "a", tmp_path / "none"], "none (it does not exist)"),
    ):
        assert main(["compare", *map(str, runs)]) == 2
        assert said in capsys.readouterr().err
