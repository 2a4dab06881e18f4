"""A small flow-matching transformer (DiT) that paints a picture from a prompt."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.trainer.prompts import VOCABULARY_SIZE
from toolkit.trainer.shapes import IMAGE_SIZE

ARCHITECTURE = "tiny_dit"

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
        nn.init.normal_(self.words.weight[1:], std=0.5)  # number 0 is padding and adds nothing
        for silent in (self.modulation, self.modulation_out, self.patch_out):
            nn.init.zeros_(silent.weight)
            nn.init.zeros_(silent.bias)

    def forward(self, noisy: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
        """Take pictures (n, 3, h, w), times (n,) and word numbers (n, words); return velocities (n, 3, h, w)."""
        tokens = self.patch_in(_to_patches(noisy)) + self.position
        condition = self.time_in(_time_waves(time)) + self.words(prompt).sum(dim=1)
        condition = F.silu(self.condition(F.silu(condition)))
        modulation = self.modulation(condition).unflatten(1, (6, _WIDTH))
        for block in self.transformer_blocks:
            tokens = block(tokens, modulation)
        shift, scale = self.modulation_out(condition).unsqueeze(1).chunk(2, dim=-1)
        picture = _to_picture(self.patch_out(_normalise(tokens) * (1 + scale) + shift))
        return (noisy - picture) / time.clamp(min=1e-3)[:, None, None, None]


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()
        self.ff = _FeedForward()
        self.modulation_table = nn.Parameter(torch.randn(6, _WIDTH) * 0.02)

    def forward(self, tokens: Tensor, modulation: Tensor) -> Tensor:
        parts = (modulation + self.modulation_table).unsqueeze(2).unbind(dim=1)
        shift_attn, scale_attn, gate_attn, shift_ff, scale_ff, gate_ff = parts
        tokens = tokens + gate_attn * self.attn(_normalise(tokens) * (1 + scale_attn) + shift_attn)
        out: Tensor = tokens + gate_ff * self.ff(_normalise(tokens) * (1 + scale_ff) + shift_ff)
        return out


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(_WIDTH, _WIDTH)
        self.to_k = nn.Linear(_WIDTH, _WIDTH)
        self.to_v = nn.Linear(_WIDTH, _WIDTH)
        self.to_out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            layer(tokens).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return out


class _FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj_in = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.proj_out = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        # A squared ReLU: as good as GELU at this size, and on a CPU its gradient costs a tenth.
        out: Tensor = self.proj_out(F.relu(self.proj_in(tokens)).square())
        return out


def _normalise(tokens: Tensor) -> Tensor:
    return F.layer_norm(tokens, tokens.shape[-1:])


def _time_waves(time: Tensor) -> Tensor:
    half = _WIDTH // 2
    speed = torch.exp(-math.log(1000.0) * torch.arange(half, device=time.device) / half)
    angle = time[:, None] * 100.0 * speed
    return torch.cat((angle.cos(), angle.sin()), dim=1)


def _to_patches(picture: Tensor) -> Tensor:
    patches: Tensor = picture.unflatten(3, (_GRID, _PATCH)).unflatten(2, (_GRID, _PATCH))
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _to_picture(tokens: Tensor) -> Tensor:
    patches: Tensor = tokens.unflatten(2, (_CHANNELS, _PATCH, _PATCH)).unflatten(1, (_GRID, _GRID))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
