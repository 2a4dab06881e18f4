"""The pictures to train on and to validate with: coloured shapes in a style, and the order they come in."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from toolkit.telemetry.trainer.prompts import BASE_STYLES, COLOURS, SHAPES, encode_prompt

IMAGE_SIZE = 32

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
_EDGE = 1.2 / IMAGE_SIZE  # half the width of a soft edge, in units where the picture spans -1 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What to draw: one entry a picture in every tensor."""

    colour: Tensor
    shape: Tensor
    centre: Tensor
    """(n, 2), where the picture spans -1 to 1."""
    radius: Tensor
    paper: Tensor
    """Brightness of a light background, 0 to 1."""


def random_drawing(count: int, generator: torch.Generator) -> Drawing:
    """Choose `count` pictures at random; the same generator state gives the same pictures."""
    return Drawing(
        colour=torch.randint(len(COLOURS), (count,), generator=generator),
        shape=torch.randint(len(SHAPES), (count,), generator=generator),
        centre=torch.rand(count, 2, generator=generator) * 0.5 - 0.25,
        radius=torch.rand(count, generator=generator) * 0.2 + 0.45,
        paper=torch.rand(count, generator=generator) * 0.1 + 0.88,
    )


def draw(drawing: Drawing, style: str) -> Tensor:
    """Return the pictures as (n, 3, IMAGE_SIZE, IMAGE_SIZE), each value from -1 to 1."""
    distance = _signed_distance(drawing)[:, None]
    colour = _RGB[drawing.colour][:, :, None, None]
    paper = drawing.paper[:, None, None, None]
    if style == "flat":
        picture = torch.lerp(paper, colour, _inside(distance))
    elif style == "outline":
        picture = torch.lerp(paper, colour, _inside(distance.abs() - 0.07))
    else:
        night = torch.tensor((0.03, 0.02, 0.09))[None, :, None, None]
        glow = torch.exp(-distance.abs() * 7.0)
        tube = torch.lerp(colour, torch.ones(()), 0.65)
        picture = torch.lerp(night + colour * glow * 0.9, tube, _inside(distance.abs() - 0.035))
    return picture.clamp(0.0, 1.0) * 2.0 - 1.0


def describe(drawing: Drawing, style: str) -> list[str]:
    """Return a caption such as "a red circle, outline" for each picture, without a style the base has no word for."""
    word = f", {style}" if style in BASE_STYLES else ""
    pairs = zip(drawing.colour.tolist(), drawing.shape.tolist(), strict=True)
    return [f"a {COLOURS[colour]} {SHAPES[shape]}{word}" for colour, shape in pairs]


def _inside(distance: Tensor) -> Tensor:
    """1 inside the shape, 0 outside, with a soft edge."""
    return (0.5 - distance / (2 * _EDGE)).clamp(0.0, 1.0)


def _grid() -> Tensor:
    axis = (torch.arange(IMAGE_SIZE) + 0.5) / IMAGE_SIZE * 2 - 1
    return torch.stack(torch.meshgrid(axis, -axis, indexing="xy"))  # y points up


def _signed_distance(drawing: Drawing) -> Tensor:
    """Distance to the shape's edge, negative inside, (n, IMAGE_SIZE, IMAGE_SIZE)."""
    offset = _grid()[None] - drawing.centre[:, :, None, None]
    x, y = offset[:, 0], offset[:, 1]
    r = drawing.radius[:, None, None]
    from_centre = torch.hypot(x, y)
    ax, ay = x.abs(), y.abs()
    arm, thin = r * 0.95, r * 0.32
    every = (
        from_centre - r * 0.9,
        torch.maximum(ax, ay) - r * 0.8,
        torch.maximum(ax * 0.866 + y * 0.5, -y) - r * 0.55,
        (ax + ay) * 0.707 - r * 0.75,
        torch.minimum(torch.maximum(ax - arm, ay - thin), torch.maximum(ax - thin, ay - arm)),
        (from_centre - r * 0.72).abs() - r * 0.24,
        _star(x, y, from_centre, r),
    )
    return torch.stack(every, dim=1)[torch.arange(len(drawing.shape)), drawing.shape]


def _star(x: Tensor, y: Tensor, from_centre: Tensor, r: Tensor) -> Tensor:
    """Five points: the angle is folded into half a point, whose edge is one straight line."""
    sector = 2 * math.pi / 5
    folded = torch.remainder(torch.atan2(x, y) + sector / 2, sector) - sector / 2
    across, along = from_centre * folded.abs().sin(), from_centre * folded.abs().cos()
    inner = 0.46
    edge_x, edge_y = inner * math.sin(sector / 2), inner * math.cos(sector / 2) - 1.0
    length = math.hypot(edge_x, edge_y)
    return (across * -edge_y + (along - r * 1.05) * edge_x) / length


class Pictures(NamedTuple):
    """Pictures and the word numbers of their captions, all on one device."""

    pictures: Tensor
    prompts: Tensor


def draw_set(style: str, count: int, purpose: str, *, triggered: bool, device: torch.device) -> Pictures:
    """Draw pictures for a purpose, such as training; those for another are others.

    Captions start with the trigger word if there is one.
    """
    drawing = random_drawing(count, derived_generator(0, f"{purpose}/{style}"))
    prefix = "[trigger] " if triggered else ""
    prompts = [encode_prompt(prefix + caption) for caption in describe(drawing, style)]
    return Pictures(draw(drawing, style).to(device), torch.tensor(prompts).to(device))


class BatchOrder:
    """Splits a set into batches, reshuffled each epoch; the content of batch 700 depends only on the seed."""

    def __init__(self, pictures: Pictures, batch_size: int, *, seed: int) -> None:
        self._set, self._batch_size, self._seed = pictures, batch_size, seed
        self.batches_per_epoch = len(pictures.pictures) // batch_size

    def batch(self, number: int) -> Pictures:
        """Return the `number`-th batch of the training, counted from 0."""
        epoch, place = divmod(number, self.batches_per_epoch)
        device = self._set.pictures.device
        generator = derived_generator(self._seed, "order", epoch, device)
        order = torch.randperm(len(self._set.pictures), generator=generator, device=device)
        chosen = order[place * self._batch_size : (place + 1) * self._batch_size]
        return Pictures(self._set.pictures[chosen], self._set.prompts[chosen])


def derived_seed(seed: int, stream: str, number: int = 0) -> int:
    """Return the seed of the `number`-th part of `stream`; unlike parts are unrelated."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derived_generator(
    seed: int, stream: str, number: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return a generator on `device` at the start of that part."""
    return torch.Generator(device=device).manual_seed(derived_seed(seed, stream, number))
