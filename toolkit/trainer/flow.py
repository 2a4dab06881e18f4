"""Flow matching: the loss to train with, and painting a picture step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noisy pictures, times, word numbers) -> velocity from picture to noise."""

_EARLIEST = 0.05
"""Closer to the picture the velocity is mostly rounding error, divided by a time of nearly 0."""
_FULL_WEIGHT = 0.25
"""From this time on an error counts in full."""


def random_times(count: int, kind: str, generator: torch.Generator) -> Tensor:
    """Return `count` times up to 1 on the generator's device: `linear`, or `sigmoid` with most in the middle.

    They are spread evenly and then shuffled: a batch always holds early and late ones, so its loss is less noisy.
    """
    device = generator.device
    offset = torch.rand((), generator=generator, device=device)
    even = (torch.randperm(count, generator=generator, device=device) + offset) / count
    if kind == "sigmoid":
        even = torch.sigmoid(torch.special.ndtri(even.clamp(1e-4, 1 - 1e-4)))
    return _EARLIEST + (1 - _EARLIEST) * even


def flow_loss(model: Velocity, picture: Tensor, noise: Tensor, time: Tensor, prompt: Tensor) -> Tensor:
    """Return the mean squared error of the velocity, a scalar; times close to the picture count less."""
    at = time[:, None, None, None]
    noisy = (1 - at) * picture + at * noise
    weight = (at / _FULL_WEIGHT).clamp(max=1.0)
    return F.mse_loss(model(noisy, time, prompt).float() * weight, (noise - picture) * weight)


@torch.no_grad()
def paint(model: Velocity, noise: Tensor, prompt: Tensor, *, steps: int, guidance_scale: float) -> Tensor:
    """Turn `noise` into pictures with values from -1 to 1, in `steps` Euler steps.

    A guidance scale other than 1 moves away from what the model paints without any prompt.
    """
    picture = noise
    times = torch.linspace(1.0, 0.0, steps + 1).tolist()
    for now, following in itertools.pairwise(times):
        time = torch.full((len(picture),), now, device=picture.device)
        velocity = model(picture, time, prompt)
        if guidance_scale != 1.0:
            unprompted = model(picture, time, torch.zeros_like(prompt))
            velocity = torch.lerp(unprompted, velocity, guidance_scale)
        picture = picture + velocity * (following - now)
    return picture.clamp(-1.0, 1.0)
