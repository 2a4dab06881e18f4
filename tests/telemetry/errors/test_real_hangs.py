"""Real ranks that hang or are killed are named by their own run, with the line that they are at."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.lengths import in_make_faults
from tests.project.markdown import ROOT

MAKE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from evaluations.ranks import cases, make_runs
print(json.dumps([asdict(each) for each in make_runs(cases(sys.argv[2:], 1), Path(sys.argv[1]), jobs=3)]))
"""


def results_of(folder, *kinds):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", MAKE, str(folder), *kinds]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)

    assert made.returncode == 0, made.stderr
    results = json.loads(made.stdout)
    assert sorted(each["case"]["fault"] for each in results) == sorted(kinds)
    return results


@in_make_faults
@pytest.mark.timeout(600)
def test_hangs_of_real_ranks_are_named_with_their_lines(tmp_path):
    for each in results_of(tmp_path, "before forward", "data loader", "backward"):
        assert (each["is_right_rank"], each["is_right_part"], each["is_critical"]) == (True, True, True), each
        assert each["wrong"] == []


@in_make_faults
@pytest.mark.timeout(600)
def test_real_ranks_that_are_killed_are_named(tmp_path):
    for each in results_of(tmp_path, "killed", "node dies"):
        assert each["is_right_rank"], each
