"""torchtitan's structured logs, read from its files.

The files in torchtitan/ were written by torchtitan's own structured logger (August 2026): three starts of a small loop,
of which rank 1 fails in its last step.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from toolkit.telemetry.cli.main import main

OUTPUTS = Path(__file__).with_name("torchtitan") / "outputs"


def lines_of(name):
    (path,) = (OUTPUTS / "structured_logs").glob(f"{name}*.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_its_files_are_read_in_place(capsys):
    assert main(["show", str(OUTPUTS), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]

    first, second = (
        lines_of("training.global_rank_0.20261118-141751"),
        lines_of("training.global_rank_0.20261118-141816"),
    )
    written = [line for line in (*first, *second) if line.get("event_name") == "odd"]
    assert (run["format"], run["name"], run["status"]["state"]) == ("torchtitan", "outputs", "finished")
    assert [(session["first_step"], session["last_step"]) for session in run["sessions"]] == [(1, 3), (3, 5)]
    odd = run["metrics"]["odd"]
    assert (odd["count"], odd["nan"], odd["last"]["value"]) == (6, 1, written[-1]["value"])
    took = [line["value"] for line in (*first, *second) if line["log_type_name"] == "step_end"]
    assert run["metrics"]["sec_per_step"]["max"] == pytest.approx(max(took) / 1e3)
    assert math.isclose(run["metrics"]["time/fwd_bwd"]["first"]["time"], _ends(first, "fwd_bwd")[0] / 1e6)
    assert run["metrics"]["rank_1/num_trainable_tokens"]["count"] == 3
    (other,) = _shown(capsys, next((OUTPUTS / "structured_logs").glob("*rank_1*")))
    assert other["metrics"]["num_trainable_tokens"]["count"] == 3
    assert other["status"]["state"] == "unknown"


def _ends(lines, span):
    return [line["time_us"] for line in lines if line["log_type_name"] == f"{span}_end"]


def _shown(capsys, path):
    assert main(["show", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["runs"]
