"""The script of docs/integrations/plain-pytorch.md, under torchrun with two ranks on gloo, and gone on with alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.project.markdown import ROOT, blocks
from tests.telemetry.logged import read_records
from toolkit.timing.ledger import LedgerBook

pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.timeout(240)

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run_script(folder, *command):
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    finished = subprocess.run(
        [sys.executable, *command, "train.py"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run folder after two ranks trained for 60 steps, and one process for 20 more from their checkpoint."""
    folder = tmp_path_factory.mktemp("plain")
    (block,) = blocks(ROOT / "docs/integrations/plain-pytorch.md", "python")
    (folder / "train.py").write_text(block.text)
    run_script(folder, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    (folder / "train.py").write_text(re.sub(r"(?m)^STEPS = 60$", "STEPS = 80", block.text))
    run_script(folder)
    assert [path.name for path in (folder / "logs").iterdir()] == ["plain"]
    return folder / "logs/plain"


@pytest.fixture(scope="module")
def ranks(trained):
    """The records of the two ranks' session, rank 0's first."""
    files = (trained / "metrics.jsonl", trained / "ranks/00001.jsonl")
    return [[record for record in read_records(file) if record["session"] == 1] for file in files]


def of(records, event):
    return [record for record in records if record["event"] == event]


def test_each_rank_has_a_stream_of_its_own(ranks):
    for rank, records in enumerate(ranks):
        assert {record.get("rank", 0) for record in records} == {rank}
        assert [step["global_step"] for step in of(records, "step")] == [1, 10, 20, 30, 40, 50, 60]
        assert of(records, "end")[0]["status"] == "finished"


def test_the_ranks_trained_one_model_on_different_data(ranks):
    first, second = (of(records, "step") for records in ranks)

    assert [step["grad_norm"] for step in first] == pytest.approx([step["grad_norm"] for step in second])
    assert all(one["train_loss"] != other["train_loss"] for one, other in zip(first, second, strict=True))
    assert first[-1]["train_loss"] < first[0]["train_loss"]


def test_each_rank_says_where_its_time_went(ranks):
    for records in ranks:
        (loop,) = [span for span in of(records, "span") if span["name"] == "training_loop"]
        summary = of(records, "span_summary")[-1]["spans"]
        last = of(records, "step")[-1]
        book = LedgerBook()
        # A run's ledger is that of rank 0; another rank's records make one as well, as if they were a run's own.
        book.take([{name: record[name] for name in record if name != "rank"} for record in records])
        ledger = {line.entry: line.seconds for line in book.ledger().lines}

        assert "error" not in loop
        for name in ("training_iteration", "data_loading", "forward", "backward", "optimizer_update"):
            assert summary[name]["count"] == 60
            assert 0 < last[f"time/{name}"] < loop["duration"]
        assert 0 < ledger["training"] < loop["duration"]
        assert ledger["data_wait"] > 0


def test_rank_zero_alone_saves(ranks):
    assert [(record["global_step"], record["checkpoint_path"]) for record in of(ranks[0], "checkpoint")] == [
        (60, "plain.pt")
    ]
    assert of(ranks[0], "checkpoint")[0]["bytes"] > 1000
    assert of(ranks[0], "checkpoint")[0]["seconds"] > 0
    assert of(ranks[1], "checkpoint") == []


def test_the_tags_and_the_set_up_stand_in_the_start_record_of_each_rank(ranks):
    for records in ranks:
        (start,) = of(records, "start")

        assert (start["perf_tag"], start["session_tag"]) == ("plain-cpu", "greyjacket-night")
        assert (start["batch_size"], start["max_steps"], start["optimizer"]) == (16, 60, "AdamW")
        assert "resumed_from_step" not in start


def test_what_goes_on_from_the_checkpoint_goes_on_in_the_run(trained, ranks):
    records = [record for record in read_records(trained / "metrics.jsonl") if record["session"] == 2]
    manifest = json.loads((trained / "run.json").read_text())

    assert of(records, "start")[0]["resumed_from_step"] == 60
    assert [step["global_step"] for step in of(records, "step")] == [61, 70, 80]
    assert of(records, "step")[0]["train_loss"] < 0.5 * of(ranks[0], "step")[0]["train_loss"]
    assert [session["status"] for session in manifest["sessions"]] == ["finished", "finished"]
    assert [session["perf_tag"] for session in manifest["sessions"]] == ["plain-cpu", "plain-cpu"]
