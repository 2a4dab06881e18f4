"""The training learns, repeats itself exactly, and does not notice whether it is logged."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import Image

from tests.lengths import in_make_faults
from toolkit.telemetry.trainer.loop import TrainingLoop


def final_weights(tmp_path):
    path = tmp_path / "output" / "tiny_neon_lora" / "tiny_neon_lora.pt"
    return torch.load(path, weights_only=True)["lora"]


def same(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def test_weights_are_identical_with_telemetry_on_and_off(train, process, tmp_path):
    assert train() == 0
    logged = final_weights(tmp_path)
    shutil.rmtree(tmp_path / "output")
    process["telemetry"]["enabled"] = False

    assert train() == 0
    assert same(final_weights(tmp_path), logged)


def test_a_resumed_training_ends_where_an_unbroken_one_does(train, process, tmp_path, records):
    process["train"]["lr_scheduler"] = "constant"
    assert train("--steps", "5") == 0
    unbroken = final_weights(tmp_path)
    shutil.rmtree(tmp_path / "output")
    shutil.rmtree(tmp_path / "logs")

    assert train("--steps", "3") == 0
    assert train("--steps", "5") == 0
    assert same(final_weights(tmp_path), unbroken)
    assert [record["global_step"] for record in records("step")] == [1, 2, 3, 4, 5]
    assert [record["session"] for record in records("step")] == [1, 1, 1, 2, 2]


def test_a_finished_training_is_not_trained_again(train, capsys, records):
    assert train() == 0
    assert train() == 0

    assert "nothing left to train" in capsys.readouterr().out
    assert len(records("start")) == 1


def test_resuming_with_another_rank_is_refused_and_says_so(train, process, capsys):
    assert train("--steps", "2") == 0
    process["network"]["linear"] = 8

    assert train() == 2
    assert "it has rank 4, and config.process[0].network.linear is 8" in capsys.readouterr().err


def test_a_run_is_logged_from_start_to_end(train, tmp_path, records):
    assert train() == 0

    (start,) = records("start")
    assert start["lora_rank"] == 4
    assert len(start["lora_target_modules"]) == 30
    assert [record["global_step"] for record in records("eval")] == [0, 2, 4]
    assert all(record["val_loss"] > 0 for record in records("eval"))
    saved = records("checkpoint")
    assert [record["global_step"] for record in saved] == [2, 4]
    assert saved[1]["bytes"] == (tmp_path / saved[1]["checkpoint_path"]).stat().st_size
    (end,) = records("end")
    assert end["reason"] == "finished"
    steps = records("step")
    assert steps[0]["lr"] == pytest.approx(1e-3)  # half of the warm-up to 2e-3
    assert all(record["grad_norm"] > 0 and record["epoch"] == 1 for record in steps)


def test_samples_lie_in_the_run_folder_one_a_prompt(train, run_folder, records):
    assert train() == 0

    sampled = records("sample")
    assert [record["global_step"] for record in sampled] == [0, 0, 4, 4]
    assert [record["prompt"] for record in sampled[:2]] == ["neon a red circle", "a blue star, flat"]
    for record in sampled:
        assert Image.open(run_folder / record["path"]).size == (256, 256)
        assert (run_folder / record["path"]).stat().st_mode & 0o077 == 0


def test_a_telemetry_folder_that_vanishes_does_not_end_the_training(train, process, run_folder, monkeypatch):
    validate = TrainingLoop._validate

    def vanish(loop):
        if loop.state.step == 2:
            shutil.rmtree(run_folder, ignore_errors=True)
        validate(loop)

    monkeypatch.setattr(TrainingLoop, "_validate", vanish)

    assert train() == 0


def test_a_training_that_fails_leaves_an_error_record(train, records, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TrainingLoop, "_save", fail)

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    assert "out of memory" in str(records("error"))
    assert records("end")[-1]["reason"] == "failed"


def test_neither_sampling_nor_validation_is_needed(train, process, records):
    process["sample"]["sample_every"] = 0
    process["train"]["validate_every"] = 0

    assert train() == 0
    assert records("sample") == records("eval") == []


@in_make_faults
@pytest.mark.slow
def test_the_loss_goes_down_in_a_hundred_steps(train, process, records):
    process["train"].update(
        num_images=64, batch_size=2, steps=100, warmup=10, validate_every=50, save_every=100
    )
    process["sample"]["sample_every"] = 0

    assert train() == 0
    val_losses = {record["global_step"]: record["val_loss"] for record in records("eval")}
    before, half_way, after = (val_losses[step] for step in (0, 50, 100))
    assert after < half_way < before
    assert after < before / 2
    losses = [record["train_loss"] for record in records("step")]
    assert sum(losses[-20:]) < sum(losses[:20]) / 1.5
