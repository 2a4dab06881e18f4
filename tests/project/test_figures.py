"""What was measured is what documents and product show, and the commands that measure still do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lengths import in_make_faults
from tests.project.markdown import ROOT

CORPUS = Path(os.environ.get("TELEMETRY_CORPUS") or ROOT.parent / "shared" / "corpus")


def run_module(name, *arguments, timeout_s=230):
    return subprocess.run(
        [sys.executable, "-m", name, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_documents_and_constants_are_as_the_kept_results_make_them():
    finished = run_module("benchmarks.kept")

    assert (finished.returncode, finished.stdout.strip()) == (0, ""), finished.stderr


def test_the_kept_results_do_not_identify_the_machine():
    for path in (ROOT / "benchmarks").rglob("*.json"):
        text = path.read_text(encoding="utf-8")

        assert "/tmp" not in text, path
        assert str(Path.home()) not in text, path


@in_make_faults
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_detector_and_no_confidence_is_worse_than_the_document_says():
    finished = run_module("benchmarks.kept", "--corpus", CORPUS, timeout_s=1700)
    if finished.returncode == 2:
        pytest.skip(finished.stderr.strip())

    assert finished.returncode == 0, f"if it is meant: make diagnose-eval\n{finished.stdout}{finished.stderr}"


@pytest.mark.slow
def test_a_quick_run_of_a_benchmark_prints_its_figures():
    finished = run_module("benchmarks.log_cost", "--quick", "--only", "nothing", "bare", "ours")

    assert finished.returncode == 0, finished.stderr
    assert "TelemetryLogger" in finished.stdout


@in_make_faults
def test_real_ranks_are_killed_and_named(tmp_path):
    only = ("--of-each", 1, "--only", "killed", "node dies")
    finished = run_module("benchmarks.rank_faults", "run", "--out", tmp_path, *only)
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]

    assert finished.returncode == 0, finished.stderr
    assert len(results) == 2
    assert all(result["findings"] for result in results), finished.stderr
