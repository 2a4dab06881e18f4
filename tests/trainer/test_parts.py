"""The parts of the trainer: prompts, pictures, model, LoRA, learning rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from toolkit.telemetry.trainer.loop import learning_rate
from toolkit.telemetry.trainer.model import BASE_WEIGHTS, LoraLinear, add_lora, load_base, paint
from toolkit.telemetry.trainer.options import NetworkOptions, TrainOptions
from toolkit.telemetry.trainer.pictures import batch_of, neon_signs
from toolkit.telemetry.trainer.prompts import encode_prompt

CPU = torch.device("cpu")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_prompt_is_its_words_in_order_and_the_trigger_word_is_its_placeholder():
    numbers = encode_prompt("a red circle, outline")

    assert numbers[:3] == [encode_prompt(word)[0] for word in ("red", "circle", "outline")]
    assert numbers[3:] == [0, 0, 0]
    assert encode_prompt("n30n red star", "n30n") == encode_prompt("[trigger] a RED star")


def test_an_epoch_shows_each_picture_once_and_a_batch_depends_on_its_number_alone():
    trained = neon_signs(12, "training", CPU)
    epochs = [
        torch.cat([batch_of(trained, 3 * epoch + place, 4, seed=1).pictures for place in range(3)])
        for epoch in range(2)
    ]

    for epoch in epochs:
        shown = {picture.numpy().tobytes() for picture in epoch}
        assert shown == {picture.numpy().tobytes() for picture in trained.pictures}
    assert not torch.equal(*epochs)
    assert torch.equal(batch_of(trained, 1, 4, seed=1).pictures, epochs[0][4:8])


def test_validation_pictures_are_not_those_of_the_training():
    trained, unseen = (neon_signs(20, purpose, CPU).pictures for purpose in ("training", "validation"))

    assert not any(torch.equal(a, b) for a in trained for b in unseen)


def test_the_included_base_is_small_and_paints_what_it_is_asked_for():
    model = load_base()
    prompts = torch.tensor([encode_prompt(f"a {colour} circle, flat") for colour in ("red", "green", "blue")])
    pictures = paint(model, torch.randn(3, 3, 32, 32, generator=seeded()), prompts, steps=8)

    assert pictures[:, :, 13:19, 13:19].mean(dim=(2, 3)).argmax(dim=1).tolist() == [0, 1, 2]
    assert sum(parameter.numel() for parameter in model.parameters()) < 2_000_000
    assert BASE_WEIGHTS.stat().st_size < 5_000_000


def test_a_new_lora_changes_nothing_and_only_it_is_trained():
    model = load_base()
    inputs = (
        torch.randn(2, 3, 32, 32, generator=seeded()),
        torch.tensor([0.3, 0.9]),
        torch.tensor([[2, 10], [3, 11]]),
    )
    before = model(*inputs)
    lora = add_lora(model, NetworkOptions(linear=4), seeded())
    assert torch.equal(model(*inputs), before)

    frozen = {name: tensor.clone() for name, tensor in model.state_dict().items() if "lora_" not in name}
    optimizer = torch.optim.AdamW(lora.values(), lr=0.1)
    for _ in range(2):
        model(*inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in frozen.items())
    assert all(matrix.abs().sum() > 0 for matrix in lora.values())


def test_the_lora_adds_alpha_over_rank_times_its_product():
    torch.manual_seed(0)
    base, inputs = nn.Linear(6, 5), torch.randn(3, 6)
    layer = LoraLinear(base, NetworkOptions(linear=4, linear_alpha=8.0), seeded())
    nn.init.normal_(layer.lora_B)

    merged = base.weight + 8.0 / 4 * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(inputs), inputs @ merged.T + base.bias)


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_the_learning_rate_rises_in_the_warm_up_and_then_keeps_to_its_schedule(kind):
    def rate(step, warmup=4):
        return learning_rate(step, TrainOptions(lr=1.0, lr_scheduler=kind, warmup=warmup, steps=20))

    rates = [rate(step) for step in range(1, 21)]

    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    if kind == "constant":
        assert set(rates[4:]) == {1.0}
    else:
        assert rates[4:] == sorted(rates[4:], reverse=True)
        assert 0 < rates[-1] < 0.1
    assert rate(1, warmup=0) == 1.0
    assert rate(20, warmup=40) == 0.5
