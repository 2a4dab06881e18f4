"""The training is the same, to the last bit, with telemetry on, off, and failing in every way there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.children import ROOT
from tests.lengths import in_make_faults, is_long, longer

WAYS = [
    "absent",
    "absent_and_failing",
    "on",
    "with_a_failure_of_its_own",
    "with_all_that_hangs",
    "with_no_threads",
    "with_all_that_raises",
]
STEPS = longer(16, 400)
THE_SAME = ("weights", "optimizer", "losses", "python's random numbers", "numpy's", "torch's")


class Trained:
    """What became of the same training in each way of having telemetry."""

    def __init__(self, folder):
        self._folder = folder
        self.ways = sorted(path.stem for path in folder.glob("*.end"))

    def result(self, way):
        return json.loads((self._folder / f"{way}.json").read_text())

    def end(self, way):
        return json.loads((self._folder / f"{way}.end").read_text())

    def printed(self, way, stream):
        lines = (self._folder / f"{way}.{stream}").read_text().splitlines()
        return [line for line in lines if not line.startswith("[telemetry] ")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.faults.seeded_training",
            folder,
            str(STEPS),
            *([] if is_long() else WAYS),
        ],
        cwd=ROOT,
        env={**os.environ, "TRY_EVERY": "1"},
        capture_output=True,
        text=True,
        timeout=longer(500, 3000),
    )
    assert done.returncode == 0, done.stderr
    return Trained(folder)


@pytest.mark.slow
@pytest.mark.timeout(longer(600, 3600))
def test_weights_losses_and_random_numbers_are_the_same_to_the_last_bit(trained, record_property):
    without = trained.result("absent")
    different = {
        way: [what for what in THE_SAME if trained.result(way)[what] != without[what]] for way in trained.ways
    }

    record_property(
        "measured", f"{STEPS} steps, {len(trained.ways)} ways to have telemetry, 0 bits different"
    )
    assert not {way: what for way, what in different.items() if what}
    assert len(set(without["losses"])) > STEPS // 2, "a training that does nothing proves nothing"


def test_telemetry_was_really_on_and_really_failing(trained):
    assert trained.result("on")["telemetry errors"] == 0
    for way in trained.ways:
        if way.startswith("with_") and ("raises" in way or "fails" in way or "no_" in way):
            assert trained.result(way)["telemetry errors"] > 0, way


def test_exit_code_and_output_are_those_of_the_training(trained, record_property):
    failing = {"absent_and_failing", "with_a_failure_of_its_own"}
    for way in trained.ways:
        assert trained.end(way)["code"] == (1 if way in failing else 7), way
        if not way.endswith("set_up_and_end_raising_in_turn"):
            assert trained.printed(way, "out") == trained.printed("absent", "out"), way

    last_lines = [trained.printed(way, "err")[-1] for way in failing]
    record_property("measured", f"{len(trained.ways)} processes, each with the training's own exit code")
    assert last_lines == ["ValueError: the training's own"] * 2


@in_make_faults
def test_no_function_of_ours_that_raises_in_the_loop_reaches_the_training(trained, record_property):
    result = trained.result("with_every_function_of_the_loop_raising_in_turn")

    record_property("measured", f"{result['functions']} functions made to raise, 0 reached the training")
    assert result["reached the training"] == []
    assert result["functions"] > 300
    assert result["still live"], "and it goes on logging"


@in_make_faults
def test_no_function_of_ours_that_raises_at_the_start_or_the_end_reaches_the_training(
    trained, record_property
):
    result = trained.result("with_every_function_of_set_up_and_end_raising_in_turn")

    record_property("measured", f"{result['functions']} functions made to raise, 0 reached the training")
    assert result["reached the training"] == []
    assert result["functions"] >= 300
    assert result["slowest"] < 60.0, "and none of them holds up the script"


# ---------------------------------------------------------------- what the process is set to

PROGRAMS = Path(__file__).with_name("programs")

OURS_WHILE_IT_RUNS = {"threads", "descriptors", "exits", "signal handlers"}
ASKED_FOR = {"hooks", "streams"}


@pytest.mark.parametrize("library", ["nothing", pytest.param("torch", marks=in_make_faults)])
def test_all_that_a_process_is_set_to_is_as_it_was(tmp_path, library, record_property):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "process_settings.py", tmp_path / "logs", library],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ")[0].isupper())

    record_property("measured", f"{said['SETTINGS']} settings of the process compared, 0 changed")
    assert said["IMPORT"] == "[]"
    assert said["AFTER"].startswith("[] "), said["AFTER"]
    changed = set(json.loads(said["DURING"].replace("'", '"')))
    allowed = OURS_WHILE_IT_RUNS | (ASKED_FOR if library == "torch" else {"streams"})
    assert changed <= allowed
    assert library == "torch" or said["LOADED"] == "[]"
