"""`telemetry ls`: ours and other tools' runs, order, filters, and folders that are broken."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from io import StringIO

import pytest

from tests.cli.runs import write_run, write_table
from tests.exchange.commands import telemetry
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import SUBCOMMANDS, main, subcommand_of
from toolkit.telemetry.runfolder.labels import Labels, ProjectSettings, write_labels, write_project
from toolkit.telemetry.runs.frame import steps


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    place = tmp_path_factory.mktemp("ls") / "logs"
    write_run(place, "good", [0.5, 0.25], config={"train": {"lr": 1e-4}})
    write_labels(
        write_run(place, "bad", [0.5, float("nan")], config={"train": {"lr": 1e-3}}), Labels(tags=("x",))
    )
    os.utime(write_table(place / "other_tool" / "metrics.csv", [3.0, 2.0, 1.5]), (1.7e9, 1.7e9))
    broken = place / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    return place


def names(capsys) -> list[str]:
    return [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]


def test_every_run_is_listed_with_its_status_step_and_loss(logs, capsys):
    assert main(["ls", str(logs)]) == 1, "one of them cannot be read"

    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:5]}
    assert rows["good"][1:5] == ["telemetry", "finished", "2", "0.25"]
    assert rows["bad"][1:5] == ["telemetry", "finished", "2", "nan"]
    assert rows["broken"][1:3] == ["telemetry", "unreadable"]
    [table] = [re.split(r"\s{2,}", row) for row in out.splitlines() if " table " in row]
    assert table[1:5] == ["table", "no end", "2", "1.5"]
    assert f"{logs / 'broken'}: " in out


def test_the_json_has_words_for_what_json_lacks_and_why_a_run_cannot_be_read(logs, capsys):
    main(["ls", str(logs), "--json"])

    found = json.loads(capsys.readouterr().out)
    by_name = {run["name"]: run for run in found["runs"]}
    assert by_name["bad"]["loss"] == "NaN"
    assert by_name["bad"]["tags"] == ["x"]
    assert by_name["broken"]["problem"]
    assert by_name["good"]["path"] == str(logs / "good")


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("loss<1", ["good"]),
        ("lr>1e-4", ["bad"]),
        ("lr=0.0001", ["good"]),
        ("tag:x", ["bad"]),
        ("status:unreadable", ["broken"]),
        ("status:finished g*", ["good"]),
        ("step>=2 format:telemetry goo", ["good"]),
    ],
)
def test_a_filter_keeps_the_runs_for_which_every_term_holds(logs, capsys, terms, expected):
    main(["ls", str(logs), "--filter", terms, "--json"])

    assert names(capsys) == expected


@pytest.mark.parametrize("terms", ["loss>", "loss>high", "owner:me"])
def test_a_term_that_makes_no_sense_is_refused(logs, capsys, terms):
    with pytest.raises(SystemExit) as ended:
        main(["ls", str(logs), "--filter", terms])

    assert ended.value.code == 2
    assert terms in capsys.readouterr().err


def test_runs_are_sorted_and_those_without_a_value_come_last(logs, capsys):
    main(["ls", str(logs), "--sort", "loss", "--json"])
    first = names(capsys)
    main(["ls", str(logs), "--sort", "loss", "--reverse", "--limit", "2", "--json"])

    assert first[0] == "good"
    assert set(first[2:]) == {"bad", "broken"}
    assert names(capsys)[1] == "good"


def test_several_paths_and_paths_from_stdin(logs, capsys, monkeypatch):
    main(["ls", str(logs / "good"), str(logs / "bad"), "--sort", "name", "--json"])
    assert names(capsys) == ["bad", "good"]
    monkeypatch.setattr(sys, "stdin", StringIO(f"{logs / 'good'}\n"))
    assert main(["ls", "-", "--json"]) == 0
    assert names(capsys) == ["good"]


def test_a_path_without_a_run_is_named(tmp_path, capsys):
    assert main(["ls", str(tmp_path), str(tmp_path / "nothing")]) == 2

    err = capsys.readouterr().err
    assert f"no run found in {tmp_path}" in err
    assert f"no run found in {tmp_path / 'nothing'} (it does not exist)" in err


def test_on_a_terminal_rows_fit_its_width_and_have_colours_where_they_are_wanted(logs, capsys, monkeypatch):
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((40, 20)))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    # Set, so that what --no-color does to it is undone.
    monkeypatch.setenv("NO_COLOR", "")
    printed = []
    for more in ([], ["--no-color"]):
        monkeypatch.setattr(sys, "stdout", Terminal())
        main(["ls", *more, str(logs / "good"), str(logs / "bad"), str(logs / "broken")])
        printed.append(sys.stdout.getvalue())

    assert "\x1b[31munreadable" in printed[0]
    assert "\x1b" not in printed[1]
    assert all(len(line) <= 40 for line in printed[1].splitlines()[:4])


def test_namesakes_the_loss_the_order_and_sizes_are_shown(tmp_path, capsys):
    for at in range(3):
        with TelemetryLogger("same", log_dir=tmp_path, log_every=1, system=False) as log:
            log.log_start(config={"lr": 10.0**-at})
            log.log({"loss": 1.0 + at, "foo": 9.0 - at})
            log.log({"loss/aux": 0.5})
    capsys.readouterr()

    assert main(["ls", str(tmp_path), "--sort", "foo", "--size"]) == 0
    head, *rows = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert head[:7] == ["run", "folder", "what differs", "status", "step", "loss", "foo"]
    assert [(row[1], row[2], row[5], row[6]) for row in rows] == [
        ("same-3", "lr=0.01", "3", "7"),
        ("same-2", "lr=0.1", "2", "8"),
        ("same", "lr=1", "1", "9"),
    ]
    assert all(re.fullmatch(r"[0-9.]+ kB", row[7]) for row in rows)

    assert main(["ls", str(tmp_path), "--sort", "fooo"]) == 2
    assert re.search("did you mean foo.* Allowed: last sign, started, name", capsys.readouterr().err)
    assert main(["compare", str(tmp_path)]) == 0
    assert "same-2 lr=0.1" in capsys.readouterr().out.splitlines()[0]
    assert main(["report", str(tmp_path), "--view", "compare"]) == 0
    assert "Best by loss: same lr=1, 1" in capsys.readouterr().out


def test_a_formula_can_be_a_column_an_order_and_a_filter(logs, capsys):
    formula = "= best(train_loss) * 4"
    assert (
        main(["ls", str(logs), "--columns", formula, "--filter", "= step == 2", "--format", "telemetry"]) == 0
    )
    out = capsys.readouterr().out
    assert formula in out.splitlines()[0]
    assert re.search(r"good .* 1 ", out)

    main(["ls", str(logs), "--json", "--columns", formula, "--sort", formula])
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["name"]: run[formula] for run in runs}["good"] == 1.0
    with pytest.raises(SystemExit):
        main(["ls", str(logs), "--columns", "= ema("])
    assert "A name, a number or ( is missing (character 7)." in capsys.readouterr().err


def test_columns_are_named_by_commas_with_the_names_that_a_configuration_has(tmp_path, capsys):
    write_run(tmp_path, "run", [math.inf], config={"optim": {"lr": 0.002}})
    write_run(tmp_path, "other", [-math.inf], config={"base_lr": 0.001})
    listed = telemetry(capsys, "ls", tmp_path, "--columns", "lr, optim.lr,base_lr", "--sort", "name")["runs"]
    assert [[run[name] for name in ("lr", "optim.lr", "base_lr", "loss")] for run in listed] == [
        [0.001, 0.001, 0.001, "-Infinity"],
        [0.002, 0.002, 0.002, "Infinity"],
    ]
    assert main(["ls", str(tmp_path), "--filter", "base_lr>0.0015", "--json"]) == 0
    assert names(capsys) == ["run"]
    assert main(["ls", str(tmp_path), "--columns", "lr,accuracyy"]) == 2
    assert "did you mean accuracy?" in capsys.readouterr().err
    sql = "select run, setting from settings where number is not null order by all"
    assert [[*row.values()] for row in telemetry(capsys, "sql", sql, tmp_path)["rows"]] == [
        ["other", "base_lr"],
        ["other", "learning_rate"],
        ["run", "learning_rate"],
        ["run", "optim.lr"],
    ]
    with pytest.raises(ValueError, match="steps has no column 'losss'; there is loss"):
        steps(tmp_path, ["run", "losss"])
    assert list(steps(tmp_path, ["run", "loss"]).columns) == ["run", "loss"]


@pytest.fixture
def _names_are_of_runs_here(tmp_path, monkeypatch):
    """A name that is no path means a run in `tmp_path`."""
    for name in SUBCOMMANDS:
        # One that is imported later would keep this folder.
        subcommand_of(name)
    monkeypatch.setattr("toolkit.telemetry.cli.chosen_run.LOGS", tmp_path)
    monkeypatch.setattr("toolkit.telemetry.cli.commands.look.sql.LOGS", tmp_path)


@pytest.mark.usefixtures("_names_are_of_runs_here")
def test_a_run_is_found_by_what_ls_prints_of_it_and_of_namesakes_it_is_the_newest(tmp_path, capsys):
    for loss in (0.5, 0.25):
        write_labels(write_run(tmp_path, f"of-{loss}", [loss]), Labels(display_name="same"))
    table = write_table(tmp_path / "theirs" / "metrics.csv", [1.0])
    labels = {run["path"]: run["label"] for run in telemetry(capsys, "ls", tmp_path)["runs"]}

    def status(name):
        assert main(["status", name, "--json"]) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["path"], err

    for path, label in labels.items():
        assert status(label) == (path, "")
    assert set(labels) == {str(tmp_path / "of-0.5"), str(tmp_path / "of-0.25"), str(table)}
    newest = str(tmp_path / "of-0.25")
    assert status("of-0.25") == (newest, "")
    assert status("same") == (newest, f"2 runs are called same: this is the newest, {newest}\n")
    assert main(["rm", "same", "--yes"]) == 2
    assert "which of them is to go" in capsys.readouterr().err
    again = write_table(tmp_path / "deeper" / "theirs" / "metrics.csv", [1.0])
    said = f"2 runs are called theirs: this is the newest, {again}\n"
    assert status("theirs") == (str(again), said)
    for command in (
        ["doctor"],
        ["ls"],
        ["show"],
        ["time"],
        ["why", "of-0.5"],
        ["verdict", "of-0.5", "--against"],
        ["repair"],
        ["rm"],
        ["sql", "select run from runs"],
    ):
        assert main([*command, "of-0.25"]) != 2, command
        capsys.readouterr()
        assert main([*command, "of-0.26"]) == 2, command
        if command != ["repair"]:
            assert "did you mean of-0.25" in capsys.readouterr().err, command


@pytest.mark.usefixtures("_names_are_of_runs_here")
def test_a_run_of_another_tool_is_found_by_its_name_too_and_what_cannot_read_it_says_so(tmp_path, capsys):
    write_table(tmp_path / "deep" / "theirs" / "metrics.csv", [1.0, 0.5])
    write_run(tmp_path, "ours", [0.5])
    for command in ("ls", "show", "status", "tail", "doctor", "why", "report"):
        assert main([command, "theirs"]) != 2, command
    assert main(["compare", "theirs", "ours"]) == 0
    assert main(["sql", "select run from runs", "theirs", "--csv"]) == 0
    assert capsys.readouterr().out.endswith("run\ntheirs\n")
    exports = (["export", "--to", form] for form in ("trace", "zip"))
    for command in (["time"], ["logs"], ["show", "--errors"], *exports, ["ask"]):
        assert main([*command, "theirs"]) == 2, command
        assert "theirs is in the format table; only runs of telemetry's own logger" in capsys.readouterr().err


@pytest.mark.usefixtures("_names_are_of_runs_here")
def test_of_a_name_that_is_also_a_folder_both_runs_are_named(tmp_path, capsys):
    for place in ("run", "run-2"):
        write_labels(write_run(tmp_path, place, [0.5]), Labels(display_name="run"))
    capsys.readouterr()

    assert main(["status", "run", "--json"]) == 0

    out, err = capsys.readouterr()
    assert json.loads(out)["path"] == str(tmp_path / "run")
    newest = tmp_path / "run-2"
    assert err == f"2 runs are called run: this is {tmp_path / 'run'}; the newest is {newest}\n"


def test_a_query_names_runs_as_the_list_does(tmp_path, capsys):
    for loss in (0.5, 0.25):
        write_run(tmp_path, f"of-{loss}", [loss])
    capsys.readouterr()
    sql = "select loss from steps where run = 'of-0.5'"
    assert telemetry(capsys, "sql", sql, tmp_path)["rows"] == [{"loss": 0.5}]


def test_runs_are_compared_with_the_baseline_of_their_project(tmp_path, capsys):
    for name, loss in (("a", 0.5), ("b", 0.25), ("c", 0.75)):
        write_run(tmp_path, name, [loss])
    main(["ls", str(tmp_path)])
    assert "vs baseline" not in capsys.readouterr().out

    write_project(tmp_path, None, ProjectSettings(baseline="a"))
    main(["ls", str(tmp_path), "--sort", "name"])
    lines = capsys.readouterr().out.splitlines()
    assert "vs baseline" in lines[0]
    assert ["baseline" in lines[1], "+50.0%" in lines[2], "-50.0%" in lines[3]] == [True] * 3, "accuracy"
