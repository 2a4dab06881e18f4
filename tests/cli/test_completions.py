"""`telemetry show --completions`: the newest, those that say something, and nothing that commands a terminal."""

from __future__ import annotations

import json
import math

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main


@pytest.fixture
def answered(tmp_path, capsys):
    """A run with some completions among its steps."""
    with TelemetryLogger("rlhf", log_dir=tmp_path, system=False, csv=False, diagnostics=False) as log:
        for step in range(20):
            log.log_step(step, train_loss=1.0)
            log.log_completion(
                step, prompt=f"Question {step}?", completion=f"Answer {step}.", reward=step / 4
            )
        log.log_completion(
            20, prompt="Why?", chosen="Blue.", rejected="Green.", reward_diff=math.nan, kind="dpo"
        )
    capsys.readouterr()
    return tmp_path / "rlhf"


def test_the_newest_are_shown_with_their_numbers_and_texts(answered, capsys):
    assert main(["show", "--completions", str(answered), "--rows", "2"]) == 0
    printed = capsys.readouterr().out

    assert printed.splitlines() == [
        *("rlhf: the newest 2 of 21 completions", "", "step 19 · reward 4.75"),
        *("  prompt      Question 19?", "  completion  Answer 19.", ""),
        *("step 20 · dpo · reward_diff NaN", "  prompt      Why?", "  chosen      Blue."),
        "  rejected    Green.",
    ]


def test_a_text_is_searched_for_and_records_are_given_to_scripts(answered, capsys):
    assert main(["show", "--completions", str(answered), "--search", "ANSWER 1", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [record["global_step"] for record in records] == [15, 16, 17, 18, 19]
    assert main(["show", "--completions", str(answered), "--search", "elephant"]) == 1
    assert "none of 21 completions contains 'elephant'" in capsys.readouterr().err


def test_a_long_text_is_cut_unless_it_is_asked_for_whole(tmp_path, capsys):
    text = "word " * 100 + "\n\x1b[31mred\x1b[0m \x07"
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False) as log:
        log.log_completion(1, prompt=text, completion="x")
    capsys.readouterr()

    assert main(["show", "--completions", str(tmp_path)]) == 0
    short = capsys.readouterr().out
    assert main(["show", "--completions", str(tmp_path), "--full"]) == 0
    whole = capsys.readouterr().out

    assert "word …" in short
    assert "red" not in short
    assert whole.count("word") == 100
    assert "\N{REPLACEMENT CHARACTER}[31mred" in whole
    assert "\x1b" not in short + whole


def test_a_text_without_blanks_is_cut_in_its_middle_and_an_empty_one_has_its_name(tmp_path, capsys):
    with TelemetryLogger("r", log_dir=tmp_path, system=False, csv=False) as log:
        log.log_completion(1, prompt="为什么天空是蓝色的" * 20, completion="")
        log.log_completion(2, prompt="So: " + "x" * 200, completion="\n  indented\nlast")
    capsys.readouterr()

    assert main(["show", "--completions", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "  prompt      " + ("为什么天空是蓝色的" * 20)[:98] + " …"
    assert lines[4].strip() == "completion"
    assert lines[7].startswith("  prompt      So: xxxxx")

    assert main(["show", "--completions", str(tmp_path), "--full", "--rows", "1"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in whole[-3:]] == [
        "  completion",
        " " * 16 + "indented",
        " " * 14 + "last",
    ]
