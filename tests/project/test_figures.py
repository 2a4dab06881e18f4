"""What was measured is what documents and product show, and the commands that measure still do."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluations.__main__ import QUESTIONS
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT

CORPUS = Path(os.environ.get("TELEMETRY_CORPUS") or ROOT.parent / "shared" / "corpus")
WORDS = 420
"""A table and what is needed to read it."""


def run_module(name, *arguments, timeout_s=230):
    return subprocess.run(
        [sys.executable, "-m", name, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_a_short_document_of_its_command(question):
    module = importlib.import_module(f"evaluations.{question}")
    text = (ROOT / "docs" / "figures" / f"{question}.md").read_text(encoding="utf-8")

    assert f"Written by `make evaluate QUESTION={question}` on 20" in text
    assert f"[{module.PAGE}](../{module.PAGE})" in text
    assert callable(module.run)
    assert len(text.split()) <= WORDS


@pytest.mark.parametrize("constants", ["diagnostics/confidence_table.py", "forecasts/constants.py"])
def test_constants_say_which_command_wrote_them(constants):
    text = (ROOT / "toolkit" / "telemetry" / constants).read_text(encoding="utf-8")

    assert "Written by `make evaluate QUESTION=" in text.split('"""')[1]


def test_without_labelled_curves_the_command_says_what_is_missing(tmp_path):
    finished = run_module("evaluations", "diagnosis", "--corpus", tmp_path / "none")

    assert (finished.returncode, finished.stdout) == (2, "")
    assert "no such folder" in finished.stderr or "The evaluator is missing" in finished.stderr


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("question", ["diagnosis", "forecasts"])
def test_a_quick_evaluation_prints_its_tables(question):
    if not CORPUS.is_dir():
        pytest.skip("no labelled curves here; TELEMETRY_CORPUS says where they are")

    finished = run_module("evaluations", question, "--quick", "--corpus", CORPUS, timeout_s=550)

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("|---|") >= 1


@pytest.mark.slow
def test_a_quick_run_of_a_benchmark_prints_its_figures():
    finished = run_module("benchmarks.log_cost", "--quick", "--only", "nothing", "bare", "ours")

    assert finished.returncode == 0, finished.stderr
    assert "TelemetryLogger" in finished.stdout
