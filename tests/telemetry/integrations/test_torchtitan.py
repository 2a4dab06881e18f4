"""torchtitan's structured logs, live through our handler and read from its files.

The files in tests/importers/torchtitan were written by torchtitan's own structured logger (August 2026): three starts
of a small loop, of which rank 1 fails in its last step.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.integrations.torchtitan import register

OUTPUTS = Path(__file__).parents[2] / "importers" / "torchtitan" / "outputs"
QUIET = {"system": False, "csv": False, "output": False, "code": False, "close_timeout": PATIENCE_S}


def lines_of(name):
    (path,) = (OUTPUTS / "structured_logs").glob(f"{name}*.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_records_of_the_structured_logger_become_spans_scalars_and_events(tmp_path):
    logger = logging.Logger("torchtitan.structured_logger")  # noqa: LOG001 - no other test may see it
    register(
        structured_logger=logger,
        rank=0,
        source="training",
        output_dir=str(tmp_path / "out"),
        **{"log_dir": tmp_path, "ranks": "all", **QUIET},
    )
    for given in lines_of("training.global_rank_1"):
        extra = {"log_type", "log_type_name", "event_name", "step", "value", "task_name"}
        own = {name: given.get(name) for name in extra}
        record = logger.makeRecord(logger.name, logging.INFO, "f", 1, given["message"], (), None, extra=own)
        record.created = given["time_us"] / 1e6
        logger.handle(record)
    logger.info("a text that is no record")
    (handler,) = logger.handlers
    handler.telemetry.close()

    records = read_records(tmp_path / "out")
    steps = [record for record in records if record["event"] == "step"]
    assert [row["num_trainable_tokens"] for row in steps if "num_trainable_tokens" in row] == [
        512,
        1024,
        1536,
    ]
    assert [row["global_step"] for row in steps if "time/training_iteration" in row] == [1, 2, 3]
    spans = [record for record in records if record["event"] == "span"]
    assert {span["name"] for span in spans} >= {"dist_init", "model_init", "fwd_bwd", "checkpoint_save_sync"}
    failed = [span for span in spans if "error" in span]
    assert [(span["name"], "CUDA out of memory" in span["error"]["message"]) for span in failed] == [
        ("fwd_bwd", True)
    ]
    assert "training_start" in {record["name"] for record in records if record["event"] == "span_event"}


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
