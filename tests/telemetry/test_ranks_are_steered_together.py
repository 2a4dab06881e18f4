"""A stop that a user asks for reaches all ranks of a torchrun launch at one step."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lengths import in_make_faults, is_long
from tests.records import read_records
from tests.waiting import wait_until

pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "programs" / "train_until_stopped.py"


@in_make_faults
@pytest.mark.timeout(500)
@pytest.mark.parametrize("ranks", ["all", "zero"] if is_long() else ["all"])
def test_all_ranks_stop_at_the_same_step(tmp_path, ranks):
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            PROGRAM,
            tmp_path,
            ranks,
        ],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = tmp_path / "together"
    wait_until(lambda: len(read_records(run, live=True)) > 3, process, timeout_s=150.0)
    (run / ".asked").write_text(json.dumps({"actions": ["stop"], "timestamp": time.time()}))
    os.chmod(run / ".asked", 0o600)
    os.replace(run / ".asked", run / "control.json")
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 0, output
    stopped = [(tmp_path / f"stopped-{rank}").read_text() for rank in range(2)]
    assert stopped[0] == stopped[1] != "None"
    answers = [record for record in read_records(run) if record["event"] == "control_change"]
    assert [(answer["status"], answer["actions"]) for answer in answers] == [("applied", ["stop"])]
    assert answers[0]["global_step"] == int(stopped[0])
    assert (run / "ranks" / "00001.jsonl").exists() == (ranks == "all")
