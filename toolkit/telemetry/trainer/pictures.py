"""The pictures to train on and to validate with: neon signs of coloured shapes, and the order they come in."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import torch
from torch import Tensor

from toolkit.telemetry.trainer.prompts import COLOURS, SHAPES, encode_prompt

IMAGE_SIZE = 32

_EDGE = 1.2 / IMAGE_SIZE
"""Half the width of a soft edge, where the picture spans -1 to 1."""
_RGB = torch.tensor(
    [
        (0.88, 0.12, 0.14),  # red
        (0.96, 0.52, 0.08),  # orange
        (0.95, 0.84, 0.12),  # yellow
        (0.12, 0.66, 0.24),  # green
        (0.10, 0.74, 0.80),  # cyan
        (0.14, 0.26, 0.86),  # blue
        (0.52, 0.16, 0.72),  # purple
        (0.96, 0.44, 0.68),  # pink
    ]
)


def _distance(centre: Tensor, r: Tensor) -> Tensor:
    """Return the distance to the edge of every shape, in the order of their names: (n, shapes, height, width).

    It is negative inside.
    """
    axis = (torch.arange(IMAGE_SIZE) + 0.5) / IMAGE_SIZE * 2 - 1
    grid = torch.stack(torch.meshgrid(axis, -axis, indexing="xy"))  # y points up
    x, y = (grid[None] - centre[:, :, None, None]).unbind(dim=1)
    ax, ay, from_centre = x.abs(), y.abs(), torch.hypot(x, y)
    arm, thin = r * 0.95, r * 0.32
    # The angle is folded into half a point of the star, whose edge is one straight line.
    sector = 2 * math.pi / 5
    folded = torch.remainder(torch.atan2(x, y) + sector / 2, sector) - sector / 2
    across, along = from_centre * folded.abs().sin(), from_centre * folded.abs().cos()
    edge_x, edge_y = 0.46 * math.sin(sector / 2), 0.46 * math.cos(sector / 2) - 1.0
    every = (
        from_centre - r * 0.9,
        torch.maximum(ax, ay) - r * 0.8,
        torch.maximum(ax * 0.866 + y * 0.5, -y) - r * 0.55,
        (ax + ay) * 0.707 - r * 0.75,
        torch.minimum(torch.maximum(ax - arm, ay - thin), torch.maximum(ax - thin, ay - arm)),
        (from_centre - r * 0.72).abs() - r * 0.24,
        (across * -edge_y + (along - r * 1.05) * edge_x) / math.hypot(edge_x, edge_y),
    )
    return torch.stack(every, dim=1)


class Pictures(NamedTuple):
    """Pictures with values from -1 to 1 and the word numbers of their captions, all on one device."""

    pictures: Tensor
    prompts: Tensor


def neon_signs(count: int, purpose: str, device: torch.device) -> Pictures:
    """Draw neon signs for a purpose, such as training; those for another are others."""
    generator = generator_of(0, f"{purpose}/neon")
    colours = torch.randint(len(COLOURS), (count,), generator=generator)
    shapes = torch.randint(len(SHAPES), (count,), generator=generator)
    centre = torch.rand(count, 2, generator=generator) * 0.5 - 0.25
    radius = torch.rand(count, generator=generator) * 0.2 + 0.45
    colour = _RGB[colours][:, :, None, None]
    distance = _distance(centre, radius[:, None, None])[torch.arange(count), shapes][:, None].abs()
    night = torch.tensor((0.03, 0.02, 0.09))[None, :, None, None]
    glow = torch.exp(-distance * 7.0)
    tube = torch.lerp(colour, torch.ones(()), 0.65)
    is_tube = (0.5 - (distance - 0.035) / (2 * _EDGE)).clamp(0.0, 1.0)
    pictures = torch.lerp(night + colour * glow * 0.9, tube, is_tube)
    named = zip(colours.tolist(), shapes.tolist(), strict=True)
    prompts = torch.tensor([encode_prompt(f"[trigger] a {COLOURS[c]} {SHAPES[s]}") for c, s in named])
    return Pictures((pictures.clamp(0.0, 1.0) * 2.0 - 1.0).to(device), prompts.to(device))


def batch_of(given: Pictures, number: int, size: int, seed: int) -> Pictures:
    """Return a batch, counted from 0: each epoch shows every picture once, in an order that depends on the seed."""
    count, device = len(given.pictures), given.pictures.device
    epoch, place = divmod(number, count // size)
    order = torch.randperm(count, generator=generator_of(seed, "order", epoch, device), device=device)
    chosen = order[place * size : (place + 1) * size]
    return Pictures(given.pictures[chosen], given.prompts[chosen])


def generator_of(
    seed: int, stream: str, number: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a generator on `device` for the `number`-th part of `stream`; unlike parts are unrelated."""
    own = random.Random(f"{seed}/{stream}/{number}").getrandbits(63)
    return torch.Generator(device=device).manual_seed(own)
