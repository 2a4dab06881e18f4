"""LoRA: small trainable matrices beside frozen linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoraLinear(nn.Module):
    """A frozen linear layer plus `alpha / rank` times two small matrices, of which the second starts at zero."""

    def __init__(
        self, base: nn.Linear, *, rank: int, alpha: float, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.dropout = dropout
        bound = base.in_features**-0.5
        start = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(start.to(base.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the frozen layer's output with the LoRA's share added."""
        narrow = F.dropout(F.linear(inputs, self.lora_A), self.dropout, self.training)
        out: Tensor = self.base(inputs) + F.linear(narrow * self.scale, self.lora_B)
        return out


class Lora:
    """All LoRA layers of one model."""

    def __init__(self, layers: Mapping[str, LoraLinear]) -> None:
        self.layers = dict(layers)

    @property
    def target_modules(self) -> list[str]:
        """The names of the layers that got a LoRA."""
        return list(self.layers)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each trainable matrix under the name it has in a checkpoint."""
        for name, layer in self.layers.items():
            yield f"transformer.{name}.lora_A.weight", layer.lora_A
            yield f"transformer.{name}.lora_B.weight", layer.lora_B

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable matrices, always in the same order."""
        return [parameter for _, parameter in self.named_parameters()]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return what a checkpoint must hold to fit."""
        return {name: tuple(parameter.shape) for name, parameter in self.named_parameters()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the values of a checkpoint that fits."""
        for name, parameter in self.named_parameters():
            parameter.copy_(tensors[name])


def add_lora(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    only_if_contains: tuple[str, ...],
    ignore_if_contains: tuple[str, ...],
    generator: torch.Generator,
) -> Lora:
    """Put a LoRA beside every chosen linear layer of the blocks of `model`, in place, and freeze everything else.

    A layer is chosen where its name contains one of `only_if_contains` (any, where that is empty)
    and none of `ignore_if_contains`. The result may be empty.
    """
    model.requires_grad_(False)
    chosen = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and name.startswith("transformer_blocks.")
        and (not only_if_contains or any(part in name for part in only_if_contains))
        and not any(part in name for part in ignore_if_contains)
    ]
    layers = {}
    for name, module in chosen:
        layer = LoraLinear(module, rank=rank, alpha=alpha, dropout=dropout, generator=generator)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer)
        layers[name] = layer
    return Lora(layers)
