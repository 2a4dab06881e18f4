"""How often `telemetry verdict` is right: loops of changes with and without effect, on the noise of real runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from evaluations.figures import Options, say, table
from toolkit.telemetry.answers.sequential_test import ALPHA, FEWEST, limit, share_of_try

PAGE: Final = "answers.md"
TRIES: Final = 50
RUNS: Final = 16
BEST: Final = (3, 10, 20)
SIZES: Final = (4, 8, 16, 32)


def run(options: Options) -> str:
    """Return the figures."""
    pools = results(40 if options.quick else SEEDS)
    loops = 200 if options.quick else 2000
    return "\n\n".join(
        [
            (
                f"A loop compares {TRIES} changes **without effect** with the best one, after each of {RUNS} runs; "
                f"{loops:,} loops of each kind, the last two from small trainings with {SEEDS} seeds. "
                "A false *better* in a loop (goal: 5 %; in brackets: the better number of one run); then how often a "
                "change of 2 standard deviations is called *better* by its 4th, 8th, 16th and 32nd run, the best run "
                "ten times:"
            ),
            _kinds(pools, loops),
        ]
    )


def _kinds(pools: dict[str, list[float]], loops: int) -> str:
    kinds: dict[str, tuple[Draw, dict[str, Any], Draw | None]] = {
        name: (draw, {}, draw) for name, draw in DRAWN.items()
    }
    kinds["normal, variance of a change twice or half"] = DRAWN["normal"], {"ratio": 2.0}, None
    kinds["normal, half of the noise shared by seeds"] = DRAWN["normal"], {"shares_seeds": True}, None
    kinds |= {
        name: (of_pool(last), {}, of_pool((np.array(last) - fmean(last)) / stdev(last)))
        for name, last in pools.items()
    }
    rows = []
    for name, (draw, how, scaled) in kinds.items():
        say(f"{loops} loops without effect: {name}")
        found = [loops_with_a_better(draw, of_best=best, loops=loops, **how) for best in BEST]
        false = "/".join(f"{100 * each['verdict']:.1f}" for each in found)
        by_number = f"{100 * fmean(each['number'] for each in found):.0f}"
        rows.append([name, f"{false} % ({by_number} %)", _power(scaled, 2 * loops) if scaled else "-"])
    return table(["noise", f"false *better*, best of {'/'.join(map(str, BEST))}", "power"], rows)


def _power(draw: Draw, loops: int) -> str:
    """Return how often a change of 2 standard deviations was called better by so many runs, the best run ten times."""
    source = np.random.default_rng(7)
    best = draw(source, (loops, 10))
    new = draw(source, (loops, SIZES[-1])) + 2.0
    looks = _better(new, best, _squares(best), 9, ALPHA * share_of_try(1))
    return "/".join(f"{looks[size - FEWEST + 1].mean():.2f}" for size in SIZES)


# ---------------------------------------------------------------- many loops at once


Numbers = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Numbers]


def _long_tail(source: np.random.Generator, size: tuple[int, int]) -> Numbers:
    return (np.exp(source.standard_normal(size)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


DRAWN: Final[Mapping[str, Draw]] = {
    "normal": lambda source, size: source.standard_normal(size),
    "Student's t, 3 degrees of freedom": lambda source, size: source.standard_t(3, size) / math.sqrt(3),
    "lognormal, long tail to the better side": _long_tail,
    "lognormal, long tail to the worse side": lambda source, size: -_long_tail(source, size),
    "an accuracy of 200 samples": lambda source, size: (
        (source.binomial(200, 0.9, size) / 200 - 0.9) / math.sqrt(0.09 / 200)
    ),
}
"""Noise with a standard deviation of 1."""


def of_pool(values: Any) -> Draw:
    """Return what draws from the results of repeated trainings."""
    pool = np.asarray(values, dtype=np.float64)
    return lambda source, size: source.choice(pool, size)


def loops_with_a_better(
    draw: Draw, *, of_best: int, loops: int, ratio: float = 1.0, shares_seeds: bool = False
) -> dict[str, float]:
    """Return in which part of loops without effect a change is called better: by us, by the number of one run.

    One looks after each of the 16 runs of a change. `ratio` is that of the variance of a change to that of the best, or
    its reverse, by chance. With `shares_seeds` half of the noise of the first runs is that of the best one's.
    """
    source = np.random.default_rng(of_best)
    best = draw(source, (loops, of_best))
    squares, freedom = _squares(best), of_best - 1
    found = {name: np.zeros(loops, bool) for name in ("verdict", "number")}
    for number in range(1, TRIES + 1):
        new = draw(source, (loops, RUNS))
        if shares_seeds:
            shared = min(RUNS, of_best)
            new[:, :shared] = (new[:, :shared] + best[:, :shared]) / math.sqrt(2)
        new *= np.sqrt(ratio) ** source.choice([-1.0, 1.0], (loops, 1))
        found["number"] |= new[:, 0] > best[:, 0]
        looks = _better(new, best, squares, freedom, ALPHA * share_of_try(number))
        found["verdict"] |= looks[-1]
        squares, freedom = squares + _squares(new), freedom + RUNS - 1
    return {name: float(each.mean()) for name, each in found.items()}


def _better(new: Numbers, best: Numbers, squares: Numbers, freedom: int, level: float) -> list[Any]:
    found = [np.zeros(len(new), bool)]
    for size in range(FEWEST, new.shape[1] + 1):
        found.append(found[-1] | is_better(new[:, :size], best, squares, freedom, level))
    return found


def is_better(new: Numbers, best: Numbers, squares: Numbers, freedom: int, level: float) -> Any:
    """As `judge` does it, for many comparisons at once."""
    sizes = new.shape[1], best.shape[1]
    free = freedom + sizes[0] - 1
    pooled = (squares + _squares(new)) / free
    own = sum(
        np.where(_squares(group) > 1e-18, _squares(group) / max(size - 1, 1), pooled) / size
        for group, size in zip((new, best), sizes, strict=True)
    )
    error = np.sqrt(np.maximum(own, pooled * (1 / sizes[0] + 1 / sizes[1])))
    return new.mean(1) - best.mean(1) >= limit(level, *sizes, free) * error


def _squares(values: Numbers) -> Numbers:
    squares: Numbers = ((values - values.mean(1, keepdims=True)) ** 2).sum(1)
    return squares


# ---------------------------------------------------------------- small trainings repeated with many seeds


if TYPE_CHECKING:
    import torch

SEEDS: Final = 160


def classifier(seeds: int) -> torch.Tensor:
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

    _train(weights, loss, lr=1e-2, steps=300)
    return (scores(points[400:].expand(seeds, -1, -1)).argmax(2) == labels[400:]).float().mean(1)


def sometimes_stuck(seeds: int) -> torch.Tensor:
    """The parity of four bits with four hidden units: some seeds find it, others do not; minus the error."""
    import torch

    bits = torch.tensor([[float(number >> place & 1) for place in range(4)] for number in range(16)]) * 2 - 1
    wanted = bits.prod(1)
    bits = torch.cat([bits, torch.ones(16, 1)], 1)
    weights = _weights(seeds, (5, 4), (4, 1))
    sources = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]

    def error(rows: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(bits[rows] @ weights[0]) @ weights[1]
        return ((found[:, :, 0] - wanted[rows]) ** 2).mean(1)

    def loss() -> torch.Tensor:
        return error(torch.stack([torch.randperm(16, generator=each)[:8] for each in sources]))

    _train(weights, loss, lr=3e-2, steps=500)
    return -error(torch.arange(16).expand(seeds, -1))


def _weights(seeds: int, *sizes: tuple[int, int]) -> list[torch.Tensor]:
    import torch

    sources = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    drawn = (
        [torch.randn(size, generator=source) / math.sqrt(size[0]) for source in sources] for size in sizes
    )
    return [torch.stack(each).requires_grad_() for each in drawn]


def _train(weights: list[torch.Tensor], loss: Callable[[], torch.Tensor], *, lr: float, steps: int) -> None:
    """Train all seeds: the loss of each depends on its own weights alone, and so does Adam."""
    import torch

    optimizer = torch.optim.Adam(weights, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().sum().backward()
        optimizer.step()


def results(seeds: int = SEEDS) -> dict[str, list[float]]:
    """Return by its name what each seed of a training reached; higher is better."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for training in (classifier, sometimes_stuck):
        name = training.__name__.replace("_", " ")
        say(f"{name}: {seeds} seeds")
        found[name] = [float(f"{value:.5g}") for value in training(seeds).tolist()]
    return found
