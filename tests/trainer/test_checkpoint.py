"""Checkpoints are found by when they were written, pruned beyond those to keep, and refused where they do not fit."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open

from toolkit.telemetry.trainer.checkpoint import CheckpointFolder, TrainingState
from toolkit.telemetry.trainer.config import NetworkOptions, TargetOptions
from toolkit.telemetry.trainer.model import TinyDiT, add_lora


def small_lora(rank=2):
    targets = TargetOptions(only_if_contains=("0.attn.to_q",))
    return add_lora(
        TinyDiT(), NetworkOptions(linear=rank, network_kwargs=targets), torch.Generator().manual_seed(0)
    )


@pytest.fixture
def lora():
    return small_lora()


@pytest.fixture
def optimizer(lora):
    optimizer = torch.optim.AdamW(lora.parameters(), lr=0.1)
    for parameter in lora.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "out", "job", keep=2, dtype="float16")


@pytest.fixture
def save(folder, lora, optimizer):
    """Save a checkpoint of the state with these values; return its path."""

    def save_state(*, final=False, **state):
        path = folder.path_of(state["step"], final=final)
        folder.save(path, lora, optimizer, TrainingState(**state), {"rank": 2})
        return path

    return save_state


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "out").iterdir())


def test_a_checkpoint_says_where_it_comes_from(save):
    path = save(step=7, epoch=2, run_id="abc")

    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensor = file.get_tensor("transformer.transformer_blocks.0.attn.to_q.lora_A.weight")
    assert path.name == "job_000000007.safetensors"
    assert header["training_info"] == '{"step": 7, "epoch": 2}'
    assert header["run_id"] == "abc"
    assert tensor.dtype == torch.float16


def test_the_oldest_on_the_way_go_and_the_final_one_stays(optimizer, tmp_path, save):
    save(step=1, final=True)
    for step in (2, 3, 4):
        save(step=step)

    assert names(tmp_path) == [
        "job.resume.pt",
        "job.safetensors",
        "job_000000003.resume.pt",
        "job_000000003.safetensors",
        "job_000000004.resume.pt",
        "job_000000004.safetensors",
    ]


def test_the_latest_is_the_one_written_last_whatever_its_step(folder, save):
    assert folder.latest() is None
    save(step=500, final=True)
    save(step=20)

    assert folder.latest().state.step == 20


def test_files_that_are_no_checkpoints_are_passed_over_and_named(folder, capsys, save):
    path = save(step=2)
    torn = path.with_name("job_000000004.safetensors")
    for name in (torn.name, "job_000000004.resume.pt"):
        path.with_name(name).write_bytes(path.with_name(name.replace("4", "2")).read_bytes()[:100])
    path.with_name("job2_000000009.safetensors").write_bytes(b"of another job")

    assert folder.latest().state.step == 2
    assert torn.name in capsys.readouterr().out
