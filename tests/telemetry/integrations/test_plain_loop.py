"""The script of docs/integrations/plain-pytorch.md, under torchrun with two ranks on gloo, and resumed alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.lengths import in_make_faults
from tests.project.markdown import ROOT, blocks
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry.timing.ledger import LedgerBuilder

pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.timeout(240), in_make_faults]

LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def write_script(folder, steps=60):
    (block,) = blocks(ROOT / "docs/integrations/plain-pytorch.md", "python")
    text, changed = re.subn(r"(?m)^STEPS = 60$", f"STEPS = {steps}", block.text)
    assert changed == 1
    (folder / "train.py").write_text(text)


def begin_script(folder, *command):
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    return subprocess.Popen(
        [sys.executable, *command, "train.py"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_script(folder, *command):
    process = begin_script(folder, *command)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run folder after two ranks trained for 60 steps, and one process for 20 more from their checkpoint."""
    folder = tmp_path_factory.mktemp("plain")
    write_script(folder)
    run_script(folder, *TWO_RANKS)
    write_script(folder, steps=80)
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


def test_each_rank_records_its_own_time(ranks):
    for records in ranks:
        (loop,) = [span for span in of(records, "span") if span["name"] == "training_loop"]
        summary = of(records, "span_summary")[-1]["span_times"]
        last = of(records, "step")[-1]
        book = LedgerBuilder()
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


def test_tags_and_setup_are_in_the_start_record_of_each_rank(ranks):
    for records in ranks:
        (start,) = of(records, "start")

        assert (start["perf_tag"], start["session_tag"]) == ("plain-cpu", "greyjacket-night")
        assert (start["batch_size"], start["max_steps"], start["optimizer"]) == (16, 60, "AdamW")
        assert "resumed_from_step" not in start


def test_a_training_resumed_from_the_checkpoint_resumes_the_run(trained, ranks):
    records = [record for record in read_records(trained / "metrics.jsonl") if record["session"] == 2]
    manifest = json.loads((trained / "run.json").read_text())

    assert of(records, "start")[0]["resumed_from_step"] == 60
    assert [step["global_step"] for step in of(records, "step")] == [61, 70, 80]
    assert of(records, "step")[0]["train_loss"] < 0.5 * of(ranks[0], "step")[0]["train_loss"]
    assert [session["status"] for session in manifest["sessions"]] == ["finished", "finished"]
    assert [session["perf_tag"] for session in manifest["sessions"]] == ["plain-cpu", "plain-cpu"]


def test_a_stop_request_ends_both_ranks_at_one_step(tmp_path):
    write_script(tmp_path, steps=10_000_000)
    folder = tmp_path / "logs/plain"
    files = (folder / "metrics.jsonl", folder / "ranks/00001.jsonl")
    process = begin_script(tmp_path, *TWO_RANKS)
    try:
        wait_for_steps(process, files)
        request = folder / ".asked"
        request.touch(mode=0o600)
        request.write_text(json.dumps({"actions": ["stop"], "timestamp": time.time()}))
        os.replace(request, folder / "control.json")
        output, _ = process.communicate(timeout=200)
    finally:
        process.terminate()
    ends = [read_records(file, "end")[0] for file in files]
    (checkpoint,) = read_records(files[0], "checkpoint")

    assert process.returncode == 0, output
    assert [end["status"] for end in ends] == ["stopped", "stopped"]
    assert ends[0]["global_step"] == ends[1]["global_step"] == checkpoint["global_step"]


def wait_for_steps(process, files):
    wait_until(lambda: all(file.exists() and b'"step"' in file.read_bytes() for file in files), process)
