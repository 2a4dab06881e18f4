"""`telemetry logs`: the last lines, those that match, those around a step, and new ones as they come."""

from __future__ import annotations

import json

import pytest

from tests.made_runs import BEGAN, SECONDS_A_STEP, write_run
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.logger.printed.log_file import Line, LogFile
from toolkit.telemetry.runfolder.layout import RANKS


@pytest.fixture
def run(tmp_path):
    """A run of 100 steps that printed a line at each."""
    folder = write_run(tmp_path, curves={"train_loss": lambda step: 1.0})
    lines = [
        Line(BEGAN + step * SECONDS_A_STEP, step % 2, f"at step {step} \t\x1b[2J") for step in range(100)
    ]
    LogFile(folder / "output.log", mode=0o600, session=1).append(lines)
    return folder


def answers(capsys, *arguments):
    code = main(["logs", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


def test_the_last_lines_are_shown_without_anything_a_terminal_obeys(run, capsys):
    code, lines, _ = answers(capsys, run, "-n", 2)
    assert code == 0
    assert [line[9:].split("\ufffd")[0].rstrip() for line in lines] == ["at step 98", "at step 99"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--grep", "STEP 1[0-2] "], [10, 11, 12]),
        (["--grep", "step 1. ", "-n", "1"], [19]),
        (["--stderr", "-n", "2"], [97, 99]),
        (["--around", "50", "-n", "4"], [48, 49, 50, 51]),
        (["--around", "0", "-n", "4"], [0, 1]),
    ],
)
def test_lines_are_chosen(run, capsys, arguments, steps):
    code, lines, _ = answers(capsys, run, "--json", *arguments)
    found = [json.loads(line) for line in lines]
    assert code == 0
    assert [line["number"] for line in found] == steps
    assert found[0].keys() == {"number", "time", "stream", "session", "text"}


def test_the_lines_around_a_step_are_shown_although_all_of_a_second_have_one_time(tmp_path, capsys):
    folder = write_run(tmp_path, curves={"train_loss": lambda step: 1.0})
    # A hundred lines a second, which get their time when they are taken up at its end.
    lines = [Line(BEGAN + number // 100 + 1, 0, f"line {number}") for number in range(1_000)]
    LogFile(folder / "output.log", mode=0o600, session=1).append(lines)

    _, shown, _ = answers(capsys, folder, "--around", 5, "-n", 10)

    numbers = [int(line.split()[-1]) for line in shown]
    assert 100 * 5 * SECONDS_A_STEP in range(numbers[0], numbers[-1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--grep", "("], "--grep is '(', which is not a regular expression"),
        (["--around", "500"], "its steps are 0 to 99"),
        (["--rank", "7"], "Rank 7 wrote nothing"),
        (["--around", "5", "-f"], "exclude each other"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(run, capsys, arguments, sentence):
    code, lines, error = answers(capsys, run, *arguments)
    assert (code, lines) == (2, [])
    assert sentence in error
    assert error.count("\n") == 1


def test_a_run_without_output_says_why(tmp_path, capsys):
    ours = write_run(tmp_path, "ours")
    assert "`output: false`" in answers(capsys, ours)[2]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "events.out.tfevents.1").touch()
    assert "only runs of telemetry's own logger" in answers(capsys, tmp_path / "theirs")[2]


def test_another_rank_is_shown(run, capsys):
    (run / RANKS).mkdir()
    (run / RANKS / "00001.jsonl").touch()
    LogFile(run / RANKS / "00001.output.log", mode=0o600, session=1).append([Line(BEGAN, 0, "of rank 1")])
    assert answers(capsys, run, "--rank", 1)[1][0].endswith("of rank 1")


def test_a_live_run_is_followed_to_its_end_also_through_a_cut(tmp_path, capsys, monkeypatch):
    folder = write_run(tmp_path, status="running")
    file = LogFile(folder / "output.log", mode=0o600, session=1, most_bytes=2_000)
    file.append([Line(BEGAN, 0, "first")], "a bar at 1 %")
    states = iter(["running"] * 60)
    written = iter(range(60))

    def status_of(_):
        number = next(written, None)
        if number is not None:
            file.append([Line(BEGAN + 1 + number, 0, f"line {number} {'x' * 60}")], f"a bar at {number} %")
        return next(states, "finished")

    monkeypatch.setattr("toolkit.telemetry.cli.commands.look.logs.status_of", status_of)
    monkeypatch.setattr("toolkit.telemetry.cli.commands.look.logs._LOOK_EVERY_S", 0.0)
    code, lines, _ = answers(capsys, folder, "-f")

    assert code == 0
    shown = [line[9:].split(" x")[0] for line in lines]
    assert shown == ["first", *(f"line {number}" for number in range(60)), "a bar at 59 %"]
