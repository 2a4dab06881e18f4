"""`telemetry sql`: the same answer in every form, and as DataFrames."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pandas")

import pandas as pd

from tests.cli.runs import write_run, write_table
from tests.exchange.commands import telemetry
from toolkit.telemetry.cli.commands.look import sql as command
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runs import frame

DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"
STATEMENT = (
    "select run, step, train_loss, time, step > 1 as later, null as nothing from steps order by run, step"
)


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "logs", "a", [1.5, math.nan, math.inf])
    return tmp_path / "logs"


def test_every_form_has_the_same_values(logs, tmp_path, capsys):
    answer = telemetry(capsys, "sql", STATEMENT, logs)
    assert main(["sql", STATEMENT, str(logs), "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["sql", STATEMENT, str(logs), "--parquet", str(tmp_path / "answer.parquet")]) == 0
    capsys.readouterr()
    assert main(["sql", STATEMENT, str(logs)]) == 0
    text = capsys.readouterr().out
    in_python = frame.sql(STATEMENT, logs)
    steps = frame.steps(logs, ["RUN", "step", "train_loss"])

    assert answer["columns"] == ["run", "step", "train_loss", "time", "later", "nothing"]
    assert [row["train_loss"] for row in answer["rows"]] == [1.5, "NaN", "Infinity"]
    assert [(row["step"], row["later"], row["nothing"]) for row in answer["rows"][:1]] == [(1, False, None)]
    assert [row["train_loss"] for row in table] == ["1.5", "nan", "inf"]
    assert [row["time"] for row in table] == [row["time"] for row in answer["rows"]]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "answer.parquet"), in_python)
    pd.testing.assert_frame_equal(steps, in_python[["run", "step", "train_loss"]])
    assert [line.split()[:3] for line in text.splitlines()[1:4]] == [
        ["a", "1", "1.5"],
        ["a", "2", "nan"],
        ["a", "3", "inf"],
    ]


def test_what_cannot_be_answered_gets_one_sentence_and_exit_code_2(logs, tmp_path, capsys, monkeypatch):
    for arguments, says in (
        ([STATEMENT + ";", str(logs), "--parquet", str(tmp_path)], "it is a folder"),
        (["select los from steps", str(logs)], '"los" not found in FROM clause! Candidate bindings: "loss"'),
        (["copy steps to 'x'", str(logs)], "only a SELECT"),
        (["from runs", str(tmp_path / "none")], "no run found"),
    ):
        assert main(["sql", *arguments]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    with pytest.raises(FileNotFoundError, match="no run found"):
        frame.runs(tmp_path / "none")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["sql", "from runs", str(logs)]) == 2
    assert "pip install" in capsys.readouterr().err


def test_the_page_shows_what_its_command_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, best in (("lr-1e-3", 0.67), ("lr-3e-4", 0.41), ("lr-1e-4", 0.52)):
        write_run(tmp_path / "logs", name, [0.9, best])
    shown = re.findall(r"```text\n\$ telemetry (.*?)\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    capsys.readouterr()

    for line, printed in shown:
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out == printed
    assert shown


def test_the_questions_of_the_page_have_answers(logs, capsys):
    write_run(logs, "b", [0.01] * 60 + [5.0])
    write_table(logs / "other" / "metrics.csv", [3.0, 2.0])
    capsys.readouterr()
    questions = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)

    answers = []
    for question in questions:
        # There are no evaluations and settings here; the columns are those of the page.
        statement = question.replace("e.val_loss", "0.0")
        assert main(["sql", statement, str(logs), "--json"]) == 0, capsys.readouterr().err
        answers.append(json.loads(capsys.readouterr().out)["rows"])

    assert len(questions) == 4
    assert [(row["run"], row["step"]) for row in answers[1]] == [("b", 61)]
    assert "nan" in {row["kind"] for row in answers[3]}
