"""A LoRA changes nothing at first, only its own layers later, and is scaled by alpha over rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from toolkit.trainer.lora import LoraLinear, add_lora
from toolkit.trainer.model import TinyDiT


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = TinyDiT()
    for parameter in model.parameters():  # some start at zero, which would hide a change
        nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(2, 3, 32, 32, generator=generator),
        torch.tensor([0.3, 0.9]),
        torch.tensor([[2, 10, 0, 0, 0, 0], [3, 11, 1, 0, 0, 0]]),
    )


def lora_on(model, *, rank=4, alpha=4.0, only=("attn",), ignore=()):
    return add_lora(
        model,
        rank=rank,
        alpha=alpha,
        dropout=0.0,
        only_if_contains=only,
        ignore_if_contains=ignore,
        generator=torch.Generator().manual_seed(0),
    )


def test_a_new_lora_computes_exactly_what_the_base_does(model, inputs):
    before = model(*inputs)
    lora_on(model, only=("attn", "ff"))

    assert torch.equal(model(*inputs), before)


def test_only_the_chosen_layers_get_a_lora(model):
    lora = lora_on(model, only=("attn.to_q", "ff"), ignore=("proj_out", "blocks.0."))

    assert lora.target_modules == [
        f"transformer_blocks.{block}.{layer}"
        for block in range(1, 5)
        for layer in ("attn.to_q", "ff.proj_in")
    ]
    changed = [name for name, module in model.named_modules() if isinstance(module, LoraLinear)]
    assert changed == lora.target_modules


def test_no_part_of_a_name_means_every_layer_of_the_blocks(model):
    lora = lora_on(model, only=())

    assert len(lora.layers) == 5 * 6
    assert all(name.startswith("transformer_blocks.") for name in lora.target_modules)


def test_only_the_lora_is_trained(model, inputs):
    lora = lora_on(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "lora_" not in name}
    optimizer = torch.optim.AdamW(lora.parameters(), lr=0.1)
    for _ in range(2):
        model(*inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(layer.lora_B.abs().sum() > 0 for layer in lora.layers.values())
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {f"{name}.lora_{part}" for name in lora.target_modules for part in "AB"}


@pytest.mark.parametrize(("rank", "alpha"), [(1, 1.0), (4, 8.0), (8, 2.0)])
def test_the_share_of_the_lora_is_alpha_over_rank_times_its_product(rank, alpha):
    torch.manual_seed(0)
    base = nn.Linear(6, 5)
    layer = LoraLinear(base, rank=rank, alpha=alpha, dropout=0.0, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(layer.lora_B)
    inputs = torch.randn(3, 6)

    merged = base.weight + alpha / rank * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(inputs), inputs @ merged.T + base.bias)


def test_dropout_is_for_training_only():
    torch.manual_seed(0)
    base = nn.Linear(6, 5)
    layer = LoraLinear(base, rank=4, alpha=4.0, dropout=0.5, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(layer.lora_B)
    inputs = torch.randn(3, 6)

    assert not torch.equal(layer(inputs), layer(inputs))
    layer.eval()
    assert torch.equal(layer(inputs), layer(inputs))
