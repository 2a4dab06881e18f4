"""The Sweep page's answers on made sweeps whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report
from toolkit.runs.sweep.answer import SweepAnswer, SweepRun, answer

RUNS: Final = 30
SWEEPS: Final = 100

Config = dict[str, Any]
Signal = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of sweep: where its runs are, what the settings do, and how much is noise."""

    title: str
    truth: tuple[str, ...]
    """Settings of which any may be named first; none if there is nothing but noise."""
    signal: Signal
    noise: float = 0.0
    """The share of the variance between runs that no setting explains."""
    grid: bool = False
    heavy: bool = False
    """Noise with heavy tails instead of normal noise."""
    diverges_above: float | None = None
    """A learning rate above which the loss is 1e4 times as high."""


# ---------------------------------------------------------------- where the runs are


def random_search(rng: np.random.Generator, runs: int) -> list[Config]:
    """Return as many runs of a random search over ten settings."""
    return [
        {
            "learning_rate": float(10 ** rng.uniform(-5, -2)),
            "weight_decay": float(10 ** rng.uniform(-4, -1)),
            "lora_rank": int(rng.choice([4, 8, 16, 32, 64, 128])),
            "batch_size": int(rng.choice([4, 8, 16])),
            "dropout": round(float(rng.uniform(0.0, 0.3)), 3),
            "optimizer": str(rng.choice(["adamw", "adafactor", "lion"])),
            "scheduler": str(rng.choice(["constant", "cosine"])),
            "warmup_steps": int(rng.choice([0, 50, 100, 200])),
            "use_ema": bool(rng.choice([False, True])),
            "clip_norm": float(rng.choice([0.1, 0.5, 1.0, 5.0])),
            "seed": int(rng.integers(1_000_000)),
            "model": "tiny",
        }
        for _ in range(runs)
    ]


def full_grid(rng: np.random.Generator, runs: int) -> list[Config]:
    """Return as many runs of a grid of 5 x 3 x 2 in three settings, with three more drawn at random."""
    cells = list(product([1e-5, 1e-4, 1e-3, 3e-3, 1e-2], [4, 16, 64], ["adamw", "lion"]))
    return [
        {
            "learning_rate": rate,
            "lora_rank": rank,
            "optimizer": optimizer,
            "warmup_steps": int(rng.choice([0, 100])),
            "dropout": float(rng.choice([0.0, 0.1])),
            "use_ema": bool(rng.choice([False, True])),
            "seed": 0,
        }
        for rate, rank, optimizer in (cells[place % len(cells)] for place in range(runs))
    ]


# ---------------------------------------------------------------- what the settings do


def _rate(config: Mapping[str, Any]) -> float:
    return (math.log10(config["learning_rate"]) + 3.5) / 1.5


def _rank(config: Mapping[str, Any]) -> float:
    return (math.log2(config["lora_rank"]) - 4.5) / 2.5


def _lion(config: Mapping[str, Any]) -> float:
    return 1.0 if config["optimizer"] == "lion" else -0.5


def _ema(config: Mapping[str, Any]) -> float:
    return 1.0 if config["use_ema"] else -1.0


def _small(config: Mapping[str, Any]) -> float:
    """What the other settings add in every sweep."""
    return -0.25 * _rank(config) + (0.15 if config["optimizer"] == "adafactor" else 0.0)


def _nothing(config: Mapping[str, Any]) -> float:
    del config
    return 0.0


SHAPES: Final = (
    Shape(
        title="one setting on a log axis",
        truth=("learning_rate",),
        signal=lambda config: -_rate(config) + _small(config),
        noise=0.25,
    ),
    Shape(
        title="an optimum in the middle",
        truth=("learning_rate",),
        signal=lambda config: 2.2 * _rate(config) ** 2 + _small(config),
        noise=0.25,
    ),
    Shape(
        title="a high learning rate diverges",
        truth=("learning_rate",),
        signal=lambda config: -0.9 * _rate(config) + _small(config),
        noise=0.25,
        diverges_above=5e-3,
    ),
    Shape(
        title="a category of three",
        truth=("optimizer",),
        signal=lambda config: 1.1 * _lion(config) - 0.25 * _rank(config) + 0.2 * _rate(config),
        noise=0.25,
    ),
    Shape(
        title="a switch",
        truth=("use_ema",),
        signal=lambda config: 0.9 * _ema(config) + _small(config),
        noise=0.25,
    ),
    Shape(
        title="an effect that is weak at one value of another setting",
        truth=("learning_rate",),
        signal=lambda config: (-1.3 if config["batch_size"] > 4 else -0.4) * _rate(config) + _small(config),
        noise=0.2,
    ),
    Shape(
        title="two settings that matter equally",
        truth=("learning_rate", "lora_rank"),
        signal=lambda config: -_rate(config) - 0.95 * _rank(config),
        noise=0.25,
    ),
    Shape(
        title="a grid, one setting on a log axis",
        truth=("learning_rate",),
        signal=lambda config: -_rate(config) - 0.3 * _rank(config),
        noise=0.25,
        grid=True,
    ),
    Shape(
        title="a grid, an optimum in the middle",
        truth=("learning_rate",),
        signal=lambda config: 1.5 * (_rate(config) - 0.3) ** 2 - 0.3 * _rank(config),
        noise=0.25,
        grid=True,
    ),
)

HARD: Final = (
    Shape(
        title="one setting on a log axis, half of it noise",
        truth=("learning_rate",),
        signal=lambda config: -_rate(config) + _small(config),
        noise=0.5,
    ),
    Shape(
        title="two settings that matter only together",
        truth=("learning_rate", "use_ema"),
        signal=lambda config: 1.5 * _rate(config) * _ema(config),
        noise=0.2,
    ),
)

NOISE: Final = (
    Shape(title="noise, random search", truth=(), signal=_nothing, noise=1.0),
    Shape(title="noise, a grid", truth=(), signal=_nothing, noise=1.0, grid=True),
    Shape(title="noise with heavy tails", truth=(), signal=_nothing, noise=1.0, heavy=True),
)


def made_sweep(shape: Shape, number: int, runs: int = RUNS) -> list[SweepRun]:
    """Return one sweep of this shape; the same number makes the same one."""
    rng = np.random.default_rng([number, sum(shape.title.encode())])
    configs = (full_grid if shape.grid else random_search)(rng, runs)
    losses = _losses(shape, configs, rng)
    return [
        SweepRun(key=f"run{place}", name=f"run{place}", config=config, value=float(loss))
        for place, (config, loss) in enumerate(zip(configs, losses, strict=True))
    ]


def _losses(shape: Shape, configs: Sequence[Config], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    signals = np.array([shape.signal(config) for config in configs])
    noise = rng.standard_t(2, len(configs)) if shape.heavy else rng.normal(size=len(configs))
    if shape.noise < 1.0:
        # The spread of the signal over the whole space, not over these runs.
        spread = _signal_spread(shape)
        noise = noise * spread * math.sqrt(shape.noise / (1.0 - shape.noise))
    losses: np.ndarray[Any, Any] = 0.1 * np.exp(0.15 * (signals + noise))
    if shape.diverges_above is not None:
        above = np.array([config["learning_rate"] > shape.diverges_above for config in configs])
        losses = np.where(above, losses * 1e4, losses)
    return losses


_SPREADS: dict[str, float] = {}


def _signal_spread(shape: Shape) -> float:
    if shape.title not in _SPREADS:
        rng = np.random.default_rng(0)
        configs = (full_grid if shape.grid else random_search)(rng, 1000)
        _SPREADS[shape.title] = float(np.std([shape.signal(config) for config in configs]))
    return _SPREADS[shape.title]


# ---------------------------------------------------------------- what the page says


def first_named(found: SweepAnswer) -> str | None:
    """Return the setting that the page names first; None if it says that chance explains the differences."""
    return found.factors[0].keys[0] if found.verdict == "decided" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How often the answer was right."""

    right: int
    undecided: int
    covered: int
    """Sweeps in which the interval of the true setting held the share that 3,000 runs show."""
    sweeps: int


def score(shape: Shape, sweeps: int, runs: int = RUNS) -> Score:
    """Judge the answers to as many sweeps of one shape."""
    right = undecided = covered = 0
    share = _true_share(shape) if shape.truth else 0.0
    for number in range(sweeps):
        found = answer(made_sweep(shape, number, runs), metric="val_loss")
        first = first_named(found)
        undecided += first is None
        right += first in shape.truth
        for factor in found.factors:
            if shape.truth and factor.keys[0] == shape.truth[0]:
                covered += factor.low <= share <= factor.high
    return Score(right=right, undecided=undecided, covered=covered, sweeps=sweeps)


def _true_share(shape: Shape) -> float:
    runs = made_sweep(shape, 10**6, 3000)
    # A seed of its own for each run: runs of a grid with equal settings would count as one.
    runs = [replace(run, config={**run.config, "run": place}) for place, run in enumerate(runs)]
    found = answer(runs, metric="val_loss")
    return next(factor.share for factor in found.factors if factor.keys[0] == shape.truth[0])


def build(options: Options) -> Report:
    """Judge all shapes."""
    sweeps = 20 if options.quick else SWEEPS
    rows, figures = [], {}
    for shape in (*SHAPES, *HARD, *NOISE):
        say(shape.title)
        found = score(shape, sweeps)
        figures[shape.title] = {"right": found.right, "undecided": found.undecided, "covered": found.covered}
        rows.append(
            [
                shape.title,
                f"{shape.noise:.0%}",
                " or ".join(f"`{key}`" for key in shape.truth) or "nothing",
                str(found.right) if shape.truth else "-",
                str(sweeps - found.right - found.undecided if shape.truth else sweeps - found.undecided),
                str(found.undecided),
                str(found.covered) if shape.truth else "-",
            ]
        )
    fewest = min(figures[shape.title]["right"] for shape in SHAPES)
    quiet = min(figures[shape.title]["undecided"] for shape in NOISE)
    return Report(
        name="sweep_truth",
        title=f"The Sweep page on {sweeps} made sweeps of each kind, {RUNS} runs each",
        columns=[
            "sweep",
            "noise",
            "what matters most",
            "named first",
            "something else named first",
            "called undecided",
            "interval holds the true share",
        ],
        rows=rows,
        figures=figures,
        claims=[
            Claim(
                text="the right setting is named first, in the worst of the first nine rows",
                measured=100 * fewest / sweeps,
                limit=95,
                unit=" of 100",
                at_least=True,
            ),
            Claim(
                text="noise is called undecided, in the worst of the last three rows",
                measured=100 * quiet / sweeps,
                limit=95,
                unit=" of 100",
                at_least=True,
            ),
        ],
        notes=[
            "noise is the share of the variance between runs that no setting explains",
            "ten settings vary in a random search, six in a grid",
            "the intervals are meant to hold the true share (that of 3,000 runs) in 90 of 100 sweeps",
        ],
    )


if __name__ == "__main__":
    run_alone(build)
