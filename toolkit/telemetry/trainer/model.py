"""The model: a small flow-matching transformer (DiT), its base weights, its LoRA, its loss, and how it paints."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.telemetry.trainer.options import NetworkOptions
from toolkit.telemetry.trainer.pictures import IMAGE_SIZE
from toolkit.telemetry.trainer.prompts import VOCABULARY_SIZE

ARCHITECTURE = "tiny_dit"
BASE_WEIGHTS = Path(__file__).parent / "weights" / "shapes-dit-32.safetensors"
"""`python -m benchmarks.pretrain_base` of commit 087609e5 made them."""

_PATCH = 4
_CHANNELS = 3
_GRID = IMAGE_SIZE // _PATCH
_WIDTH = 128
_DEPTH = 5
_HEADS = 4


class TinyDiT(nn.Module):
    """Predicts the velocity from picture to noise at a time between 0 (picture) and 1 (noise).

    Inside it predicts the picture, which small networks do better, and works the velocity out from that.
    """

    tokens_per_picture = _GRID**2
    """How many patches a picture is cut into."""

    def __init__(self) -> None:
        super().__init__()
        patch_values = _CHANNELS * _PATCH**2
        self.patch_in = nn.Linear(patch_values, _WIDTH)
        self.position = nn.Parameter(torch.randn(1, _GRID**2, _WIDTH) * 0.02)
        self.words = nn.Embedding(VOCABULARY_SIZE, _WIDTH, padding_idx=0)
        self.time_in = nn.Linear(_WIDTH, _WIDTH)
        self.condition = nn.Linear(_WIDTH, _WIDTH)
        # One modulation for all blocks plus a small table in each: a third of the weights goes away.
        self.modulation = nn.Linear(_WIDTH, 6 * _WIDTH)
        self.transformer_blocks = nn.ModuleList(_Block() for _ in range(_DEPTH))
        self.modulation_out = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.patch_out = nn.Linear(_WIDTH, patch_values)

    def forward(self, noisy: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
        """Take pictures (n, 3, h, w), times (n,) and word numbers (n, words); return velocities (n, 3, h, w)."""
        tokens = self.patch_in(F.pixel_unshuffle(noisy, _PATCH).flatten(2).mT) + self.position
        condition = self.time_in(_time_waves(time)) + self.words(prompt).sum(dim=1)
        condition = F.silu(self.condition(F.silu(condition)))
        modulation = self.modulation(condition).unflatten(1, (6, _WIDTH))
        for block in self.transformer_blocks:
            tokens = block(tokens, modulation)
        shift, scale = self.modulation_out(condition).unsqueeze(1).chunk(2, dim=-1)
        patches = self.patch_out(_normalise(tokens) * (1 + scale) + shift)
        picture = F.pixel_shuffle(patches.mT.unflatten(2, (_GRID, _GRID)), _PATCH)
        return (noisy - picture) / time.clamp(min=1e-3)[:, None, None, None]


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        names = ("to_q", "to_k", "to_v", "to_out")
        wide = {"proj_in": nn.Linear(_WIDTH, 4 * _WIDTH), "proj_out": nn.Linear(4 * _WIDTH, _WIDTH)}
        self.attn, self.ff = (
            nn.ModuleDict({name: nn.Linear(_WIDTH, _WIDTH) for name in names}),
            nn.ModuleDict(wide),
        )
        self.modulation_table = nn.Parameter(torch.randn(6, _WIDTH) * 0.02)

    def forward(self, tokens: Tensor, modulation: Tensor) -> Tensor:
        parts = (modulation + self.modulation_table).unsqueeze(2).unbind(dim=1)
        shift_attn, scale_attn, gate_attn, shift_ff, scale_ff, gate_ff = parts
        tokens = tokens + gate_attn * self._attention(_normalise(tokens) * (1 + scale_attn) + shift_attn)
        # A squared ReLU: as good as GELU at this size, and on a CPU its gradient costs a tenth.
        wide = F.relu(self.ff["proj_in"](_normalise(tokens) * (1 + scale_ff) + shift_ff)).square()
        out: Tensor = tokens + gate_ff * self.ff["proj_out"](wide)
        return out

    def _attention(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            self.attn[name](tokens).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for name in ("to_q", "to_k", "to_v")
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.attn["to_out"](mixed.transpose(1, 2).flatten(2))
        return out


def _normalise(tokens: Tensor) -> Tensor:
    return F.layer_norm(tokens, tokens.shape[-1:])


def _time_waves(time: Tensor) -> Tensor:
    half = _WIDTH // 2
    speed = torch.exp(-math.log(1000.0) * torch.arange(half, device=time.device) / half)
    angle = time[:, None] * 100.0 * speed
    return torch.cat((angle.cos(), angle.sin()), dim=1)


class LoraLinear(nn.Module):
    """A frozen linear layer plus `alpha / rank` times two small matrices, of which the second starts at zero."""

    def __init__(self, base: nn.Linear, network: NetworkOptions, generator: torch.Generator) -> None:
        super().__init__()
        rank = network.linear
        self.base = base.requires_grad_(False)
        self.scale = network.linear_alpha / rank
        bound = base.in_features**-0.5
        start = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(start.to(base.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the frozen layer's output with the LoRA's share added."""
        out: Tensor = self.base(inputs) + F.linear(F.linear(inputs, self.lora_A) * self.scale, self.lora_B)
        return out


def add_lora(
    model: nn.Module, network: NetworkOptions, generator: torch.Generator
) -> dict[str, nn.Parameter]:
    """Put a LoRA on every linear layer of the blocks of `model`, in place, and freeze everything else.

    Returns the trainable matrices under the names they have in a checkpoint, always in the same order.
    """
    model.requires_grad_(False)
    matrices = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("transformer_blocks."):
            layer = LoraLinear(module, network, generator)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)
            matrices[f"transformer.{name}.lora_A.weight"] = layer.lora_A
            matrices[f"transformer.{name}.lora_B.weight"] = layer.lora_B
    return matrices


def load_base() -> TinyDiT:
    """Return the model with its base weights."""
    model = TinyDiT()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(BASE_WEIGHTS).items()})
    return model


_EARLIEST = 0.05
"""Closer to the picture the velocity is mostly rounding error, divided by a time of nearly 0."""
_FULL_WEIGHT = 0.25
"""From this time on an error counts in full."""
_GUIDANCE = 2.0


def random_times(count: int, generator: torch.Generator) -> Tensor:
    """Return `count` times up to 1 on the generator's device.

    They are spread evenly and then shuffled: a batch always holds early and late ones, so its loss is less noisy.
    """
    device = generator.device
    offset = torch.rand((), generator=generator, device=device)
    even = (torch.randperm(count, generator=generator, device=device) + offset) / count
    return _EARLIEST + (1 - _EARLIEST) * even


def flow_loss(model: nn.Module, picture: Tensor, noise: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
    """Return the mean squared error of the velocity, a scalar; times close to the picture count less."""
    at = time[:, None, None, None]
    noisy = (1 - at) * picture + at * noise
    weight = (at / _FULL_WEIGHT).clamp(max=1.0)
    return F.mse_loss(model(noisy, time, prompt).float() * weight, (noise - picture) * weight)


@torch.no_grad()
def paint(model: nn.Module, noise: Tensor, prompt: Tensor, *, steps: int) -> Tensor:
    """Turn `noise` into pictures with values from -1 to 1, in `steps` Euler steps.

    Each moves away from what the model paints without any prompt.
    """
    picture = noise
    for now, following in itertools.pairwise(torch.linspace(1.0, 0.0, steps + 1).tolist()):
        time = torch.full((len(picture),), now, device=picture.device)
        prompted, unprompted = model(picture, time, prompt), model(picture, time, torch.zeros_like(prompt))
        picture = picture + torch.lerp(unprompted, prompted, _GUIDANCE) * (following - now)
    return picture.clamp(-1.0, 1.0)


def choose_device(wanted: str) -> torch.device:
    """Return the device `wanted`; `auto` is a GPU if there is one. Raises ValueError if this machine has no such."""
    if wanted == "auto":
        has_apple_gpu = torch.backends.mps.is_available()
        wanted = "cuda" if torch.cuda.is_available() else "mps" if has_apple_gpu else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"{wanted} is not available: {str(error).splitlines()[0]}") from error
