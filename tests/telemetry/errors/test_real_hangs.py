"""Real ranks that hang are named by their own run, with the line that they are at."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.project.markdown import ROOT


@pytest.mark.timeout(600)
def test_three_hangs_of_real_ranks_are_named_with_their_lines(tmp_path):
    pytest.importorskip("torch")
    kinds = ["before forward", "data loader", "backward"]
    command = [
        *(sys.executable, "-m", "benchmarks.rank_hangs", "--out", str(tmp_path), "--most", "3", "--only"),
        *kinds,
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)

    assert made.returncode == 0, made.stderr
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(each["kind"] for each in results) == sorted(kinds)
    for each in results:
        assert (each["is_right"], each["has_line"], each["is_critical"]) == (True, True, True), each
        assert each["wrong"] == []
