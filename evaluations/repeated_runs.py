"""Small trainings repeated with many seeds: the noise on which verdicts are tried.

The runs of one training differ in nothing but the seed, which decides the first weights and the order of the data.
All seeds are trained together, each with its own weights, batches and optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from evaluations.figures import say

if TYPE_CHECKING:
    import torch

SEEDS: Final = 160
EVALUATIONS: Final = 20
_SYMBOLS: Final = 32
Points = list[list[float]]


def text_model(seeds: int, *, is_fixed: bool) -> Points:
    """The next symbol of a text: the learning rate falls to zero and the validation set is fixed, or neither."""
    import torch
    from torch.nn.functional import cross_entropy

    size = (_SYMBOLS, _SYMBOLS, _SYMBOLS)
    chain = torch.softmax(3 * torch.randn(size, generator=torch.Generator().manual_seed(1)), 2)

    def samples(count: int, source: torch.Generator) -> torch.Tensor:
        text = torch.randint(_SYMBOLS, (count, 2), generator=source)
        for _ in range(2):
            following = torch.multinomial(chain[text[:, -2], text[:, -1]], 1, generator=source)
            text = torch.cat([text, following], 1)
        return text

    def of_each_seed(count: int) -> torch.Tensor:
        return torch.stack([samples(count, source) for source in sources])

    sources = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]
    weights = _weights(seeds, (_SYMBOLS, 12), (36, 48), (48, _SYMBOLS))
    held_out = samples(1000, torch.Generator().manual_seed(2)).expand(seeds, -1, -1)
    row = torch.arange(seeds)[:, None, None]

    def loss(text: torch.Tensor) -> torch.Tensor:
        embedded = weights[0][row, text[:, :, :-1]].flatten(2)
        scores = torch.relu(embedded @ weights[1]) @ weights[2]
        each = cross_entropy(scores.flatten(0, 1), text[:, :, -1].flatten(), reduction="none")
        return each.view(seeds, -1).mean(1)

    return _trained(
        weights,
        lambda: loss(of_each_seed(32)),
        lambda: loss(held_out if is_fixed else of_each_seed(200)),
        lr=1e-2,
        every=20,
        decays=is_fixed,
    )


def classifier(seeds: int) -> Points:
    """The accuracy of a classifier on 500 points; of its 400 own points one in ten has the wrong label."""
    import torch
    from torch.nn.functional import cross_entropy

    source = torch.Generator().manual_seed(3)
    points = torch.randn(900, 8, generator=source)
    labels = ((points[:, :4] * points[:, 4:]).sum(1) > 0).long()
    wrong = torch.rand(400, generator=source) < 0.1
    labels[:400][wrong] = 1 - labels[:400][wrong]
    weights = _weights(seeds, (8, 32), (32, 2))
    sources = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]

    def scores(shown: torch.Tensor) -> torch.Tensor:
        return torch.relu(shown @ weights[0]) @ weights[1]

    def loss() -> torch.Tensor:
        rows = torch.stack([torch.randperm(400, generator=each)[:32] for each in sources])
        each = cross_entropy(scores(points[rows]).flatten(0, 1), labels[rows].flatten(), reduction="none")
        return each.view(seeds, -1).mean(1)

    def accuracy() -> torch.Tensor:
        return (scores(points[400:].expand(seeds, -1, -1)).argmax(2) == labels[400:]).float().mean(1)

    return _trained(weights, loss, accuracy, lr=1e-2, every=15)


def sometimes_stuck(seeds: int) -> Points:
    """The parity of four bits with four hidden units: some seeds find it, others do not."""
    import torch

    bits = torch.tensor([[float(number >> place & 1) for place in range(4)] for number in range(16)]) * 2 - 1
    wanted = bits.prod(1)
    bits = torch.cat([bits, torch.ones(16, 1)], 1)
    weights = _weights(seeds, (5, 4), (4, 1))
    sources = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]

    def error(rows: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(bits[rows] @ weights[0]) @ weights[1]
        return ((found[:, :, 0] - wanted[rows]) ** 2).mean(1)

    every_row = torch.arange(16).expand(seeds, -1)
    return _trained(
        weights,
        lambda: error(torch.stack([torch.randperm(16, generator=each)[:8] for each in sources])),
        lambda: error(every_row),
        lr=3e-2,
        every=25,
    )


def _weights(seeds: int, *sizes: tuple[int, int]) -> list[torch.Tensor]:
    import torch

    sources = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    return [
        torch.stack(
            [torch.randn(size, generator=source) / math.sqrt(size[0]) for source in sources]
        ).requires_grad_()
        for size in sizes
    ]


def _trained(
    weights: list[torch.Tensor],
    loss: Callable[[], torch.Tensor],
    evaluate: Callable[[], torch.Tensor],
    *,
    lr: float,
    every: int,
    decays: bool = False,
) -> Points:
    """Return the evaluations of each seed; its loss depends on its own weights alone, and so does Adam."""
    import torch

    optimizer = torch.optim.Adam(weights, lr=lr)
    steps, evaluations = every * EVALUATIONS, []
    for step in range(1, steps + 1):
        if decays:
            optimizer.param_groups[0]["lr"] = lr / 2 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        loss().sum().backward()
        optimizer.step()
        if step % every == 0:
            with torch.no_grad():
                evaluations.append(evaluate().tolist())
    return [[float(f"{value:.5g}") for value in values] for values in zip(*evaluations, strict=True)]


TRAININGS: Final[dict[str, tuple[str, Callable[[int], Points]]]] = {
    "text": ("min", partial(text_model, is_fixed=True)),
    "text, sampled evaluation": ("min", partial(text_model, is_fixed=False)),
    "classifier": ("max", classifier),
    "sometimes stuck": ("min", sometimes_stuck),
}


def train(seeds: int = SEEDS) -> dict[str, dict[str, Any]]:
    """Return the trainings by name: `goal`, and in `curves` the evaluations of each seed."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for name, (goal, training) in TRAININGS.items():
        say(f"{name}: {seeds} seeds")
        found[name] = {"goal": goal, "curves": training(seeds)}
    return found
