"""The pictures to train on and to validate with, and the order they come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolkit.trainer.config import DatasetOptions
from toolkit.trainer.prompts import encode_prompt
from toolkit.trainer.seeds import derived_generator
from toolkit.trainer.shapes import describe, draw, random_drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSet:
    """Pictures and the word numbers of their captions, all on one device."""

    pictures: Tensor
    prompts: Tensor
    caption_dropout: Tensor
    """(n, 1): how often the caption of each is left out in training."""

    def __len__(self) -> int:
        return len(self.pictures)

    def part(self, chosen: Tensor | slice) -> PictureSet:
        """Return the chosen pictures as a set of their own."""
        return PictureSet(
            pictures=self.pictures[chosen],
            prompts=self.prompts[chosen],
            caption_dropout=self.caption_dropout[chosen],
        )


def training_set(datasets: Sequence[DatasetOptions], *, triggered: bool, device: torch.device) -> PictureSet:
    """Draw every picture of `datasets`; captions start with the trigger word if there is one."""
    parts = [_draw_set(dataset, dataset.num_images, "training", triggered) for dataset in datasets]
    return _join(parts, device)


def validation_set(
    datasets: Sequence[DatasetOptions], count: int, *, triggered: bool, device: torch.device
) -> PictureSet:
    """Draw `count` other pictures in the same styles, in equal shares."""
    shares = [count // len(datasets) + (place < count % len(datasets)) for place in range(len(datasets))]
    parts = [_draw_set(*pair, "validation", triggered) for pair in zip(datasets, shares, strict=True)]
    return _join(parts, device)


class BatchOrder:
    """Splits a set into batches, reshuffled each epoch; the content of batch 700 depends only on the seed."""

    def __init__(self, pictures: PictureSet, batch_size: int, *, seed: int) -> None:
        self._set = pictures
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0)
        self.batches_per_epoch = len(pictures) // batch_size

    def batch(self, number: int) -> PictureSet:
        """Return the `number`-th batch of the training, counted from 0."""
        epoch, place = divmod(number, self.batches_per_epoch)
        if epoch != self._epoch:
            device = self._set.pictures.device
            generator = derived_generator(self._seed, "order", epoch, device)
            self._order = torch.randperm(len(self._set), generator=generator, device=device)
            self._epoch = epoch
        return self._set.part(self._order[place * self._batch_size : (place + 1) * self._batch_size])


def _draw_set(dataset: DatasetOptions, count: int, purpose: str, triggered: bool) -> PictureSet:
    drawing = random_drawing(count, derived_generator(dataset.seed, f"{purpose}/{dataset.style}"))
    captions = [
        f"[trigger] {caption}" if triggered else caption for caption in describe(drawing, dataset.style)
    ]
    numbers = torch.tensor([encode_prompt(caption) for caption in captions], dtype=torch.long)
    return PictureSet(
        pictures=draw(drawing, dataset.style),
        prompts=numbers.view(count, -1),
        caption_dropout=torch.full((count, 1), dataset.caption_dropout_rate),
    )


def _join(parts: Sequence[PictureSet], device: torch.device) -> PictureSet:
    return PictureSet(
        pictures=torch.cat([part.pictures for part in parts]).to(device),
        prompts=torch.cat([part.prompts for part in parts]).to(device),
        caption_dropout=torch.cat([part.caption_dropout for part in parts]).to(device),
    )
