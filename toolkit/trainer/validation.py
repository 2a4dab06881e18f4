"""The loss on pictures that are never trained on, comparable from one step to another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from toolkit.trainer.dataset import PictureSet
from toolkit.trainer.flow import flow_loss, random_times
from toolkit.trainer.model import TinyDiT
from toolkit.trainer.seeds import derived_generator

_AT_ONCE = 64


class Validation:
    """Holds the pictures together with the noise and the times that they are always shown with."""

    def __init__(self, pictures: PictureSet, *, timestep_type: str, seed: int) -> None:
        generator = derived_generator(seed, "validation")
        device = pictures.pictures.device
        self._set = pictures
        self._noise = torch.randn(pictures.pictures.shape, generator=generator).to(device)
        self._times = random_times(len(pictures), timestep_type, generator).to(device)

    @torch.no_grad()
    def loss(
        self, model: TinyDiT, *, around_each: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Tensor:
        """Return the mean loss over all pictures, on the device; leaves `model` in evaluation mode."""
        model.eval()
        total = torch.zeros((), device=self._times.device)
        for start in range(0, len(self._set), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            with around_each():
                part = self._set.part(some)
                loss = flow_loss(model, part.pictures, self._noise[some], self._times[some], part.prompts)
                total += loss * len(part)
        return total / len(self._set)
