"""The base model is small, ships with the repository, and paints what it is asked for."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from toolkit.trainer.base_weights import BASE_NAME, BASE_WEIGHTS, BaseWeightsError, load_base
from toolkit.trainer.flow import flow_loss, paint, random_times
from toolkit.trainer.pretrain_base import pretrain
from toolkit.trainer.prompts import encode_prompt


def test_the_shipped_base_is_small():
    parameters = sum(parameter.numel() for parameter in load_base(BASE_NAME).parameters())

    assert parameters < 2_000_000
    assert BASE_WEIGHTS.stat().st_size < 5_000_000


def test_the_shipped_base_paints_what_it_is_asked_for():
    model = load_base(BASE_NAME)
    prompts = torch.tensor([encode_prompt(f"a {colour} circle, flat") for colour in ("red", "green", "blue")])
    noise = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pictures = paint(model, noise, prompts, steps=8, guidance_scale=1.0)

    middles = pictures[:, :, 13:19, 13:19].mean(dim=(2, 3))
    assert middles.argmax(dim=1).tolist() == [0, 1, 2]


def test_painting_along_the_true_velocity_gives_the_picture():
    picture = torch.rand(2, 3, 32, 32) * 2 - 1
    noise = torch.randn(2, 3, 32, 32)
    prompt = torch.zeros(2, 6, dtype=torch.long)

    painted = paint(lambda noisy, time, words: noise - picture, noise, prompt, steps=5, guidance_scale=2.0)
    torch.testing.assert_close(painted, picture)
    loss = flow_loss(
        lambda noisy, time, words: noise - picture, picture, noise, torch.tensor([0.1, 0.9]), prompt
    )
    assert loss == 0


@pytest.mark.parametrize("kind", ["linear", "sigmoid"])
def test_times_are_spread_over_the_whole_way_and_shuffled(kind):
    times = random_times(64, kind, torch.Generator().manual_seed(0))

    assert 0 < times.min() < 0.2
    assert 0.9 < times.max() <= 1
    assert not torch.equal(times, times.sort().values)


def test_pretraining_twice_gives_the_same_weights():
    first, second = (pretrain(2, 4, 1e-3, torch.device("cpu")).state_dict() for _ in range(2))

    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_that_is_not_this_model_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"

    path.write_bytes(b"not weights")
    with pytest.raises(BaseWeightsError, match="cannot read base weights"):
        load_base(str(path))
    save_file({"weight": torch.ones(1)}, path, metadata={"architecture": "tiny_dit"})
    with pytest.raises(BaseWeightsError, match="does not have the weights of tiny_dit"):
        load_base(str(path))
