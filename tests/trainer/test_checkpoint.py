"""Checkpoints are found by when they were written, and pruned beyond those to keep."""

from __future__ import annotations

import pytest
import torch

from toolkit.telemetry.trainer.checkpoint import CheckpointFolder, TrainingState


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "out", "job", keep=2)


@pytest.fixture
def save(folder):
    """Save a checkpoint of the state with these values; return its path."""
    lora = {"transformer.a.lora_A.weight": torch.nn.Parameter(torch.ones(2, 3))}
    optimizer = torch.optim.AdamW(lora.values(), lr=0.1)
    lora["transformer.a.lora_A.weight"].grad = torch.ones(2, 3)
    optimizer.step()

    def save_state(*, final=False, **state):
        path = folder.path_of(state["step"], final=final)
        folder.save(path, lora, optimizer, TrainingState(**state), {"rank": 2})
        return path

    return save_state


def test_the_oldest_on_the_way_go_and_the_final_one_stays(tmp_path, save):
    save(step=1, final=True)
    for step in (2, 3, 4):
        save(step=step)

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "job.safetensors",
        "job_000000003.safetensors",
        "job_000000004.safetensors",
    ]


def test_the_latest_is_the_one_written_last_and_one_that_cannot_be_read_is_skipped(folder, capsys, save):
    assert folder.latest() is None
    save(step=500, final=True)
    path = save(step=20)
    assert folder.latest().state.step == 20

    path.write_bytes(path.read_bytes()[:100])
    assert folder.latest().state.step == 500
    assert path.name in capsys.readouterr().out
