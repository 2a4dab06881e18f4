"""Real ranks that hang are named by their own run, with the line that they are at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.rank_hangs.__main__ import HEALTHY, HEALTHY_HELD_OUT, OF_EACH, TUNED, Result, cases, table_of
from tests.project.markdown import ROOT


def result(kind, *, is_right=True, late_s=7.0, wrong=()):
    return Result(
        name=f"{kind}-0",
        kind=kind,
        is_right=is_right,
        has_line=True,
        is_critical=True,
        late_s=late_s,
        wrong=wrong,
    )


def test_there_are_as_many_runs_of_each_kind_as_the_table_claims():
    counts = Counter(case.kind for case in cases())

    assert counts == OF_EACH
    assert sum(counts[kind] for kind in TUNED) == 60
    assert sum(counts[kind] for kind in HEALTHY) == 40
    assert {case.world for case in cases()} == {4, 8}


def test_the_table_names_what_was_missed_and_every_false_alarm():
    missed = result("backward", is_right=False, late_s=None)
    alarm = result(HEALTHY[0], is_right=False, late_s=None, wrong=("Because of rank 0.",))
    text = table_of(
        [result("killed"), missed, alarm, result(HEALTHY_HELD_OUT[0], is_right=False)], "On a test."
    )

    assert "| **these together** | 2 | 1/2 (0.09 to 0.91)" in text
    assert "Not named: backward-0." in text
    assert f"- {HEALTHY[0]}-0: Because of rank 0." in text
    assert "false alarms 1/2" in text


@pytest.mark.timeout(400)
def test_three_hangs_of_real_ranks_are_named_with_their_lines(tmp_path):
    pytest.importorskip("torch")
    kinds = ["before forward", "data loader", "backward"]
    command = [
        sys.executable,
        "-m",
        "benchmarks.rank_hangs",
        "--out",
        str(tmp_path),
        "--most",
        "3",
        "--only",
        *kinds,
    ]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)

    assert made.returncode == 0, made.stderr
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(each["kind"] for each in results) == sorted(kinds)
    for each in results:
        assert (each["is_right"], each["has_line"], each["is_critical"], each["wrong"]) == (
            True,
            True,
            True,
            [],
        ), each
