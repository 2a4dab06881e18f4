"""The Sweep page's answers on made sweeps whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import Any, Final

import numpy as np

from evaluations.figures import Options, say, share, table
from toolkit.telemetry.runs.sweep.answer import SweepAnswer, answer
from toolkit.telemetry.runs.sweep.runs import SweepRun

PAGE: Final = "dashboard.md"
RUNS: Final = 30
FEWER: Final = 24
SWEEPS: Final = 100
NOISE_SWEEPS: Final = 1000
"""More of those without an effect: a hundred do not tell 1 of 25 from 1 of 50."""
TWO_DEVIATIONS: Final = 0.2
"""The share of noise if the standard deviation of the signal is twice that of the noise."""

Config = Mapping[str, Any]
Signal = Callable[[Config], float]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of sweep: where its runs are, what the settings do, and how much is noise."""

    title: str
    truth: tuple[str, ...]
    """Settings of which any may be named first; none if there is nothing but noise."""
    signal: Signal
    noise: float = 0.25
    """The share of the variance between runs that no setting explains."""
    runs: int = RUNS
    space: Callable[[np.random.Generator, int], Config] | None = None
    """Where the runs are: a random search over ten settings, or another one."""
    heavy: bool = False
    """Noise with heavy tails instead of normal noise."""
    diverges_above: float | None = None
    """A learning rate above which the loss is 1e4 times as high."""
    missing: float = 0.0
    """The probability that a run did not record a setting."""
    useless: float = 0.0
    """The share of runs whose result has nothing to do with their settings."""
    of_these_runs: bool = False
    """Whether the noise is as large against the signal in these runs, not only against that over the whole space."""

    def configs(self, rng: np.random.Generator, runs: int) -> list[Config]:
        """Return the settings of as many runs."""
        space = self.space or random_search
        return [_plain(space(rng, place)) for place in range(runs)]


# ---------------------------------------------------------------- where the runs are


def random_search(rng: np.random.Generator, _: int) -> Config:
    """Return a run of a random search over ten settings."""
    return {
        "learning_rate": 10 ** rng.uniform(-5, -2),
        "weight_decay": 10 ** rng.uniform(-4, -1),
        "lora_rank": rng.choice([4, 8, 16, 32, 64, 128]),
        "batch_size": rng.choice([4, 8, 16]),
        "dropout": round(rng.uniform(0.0, 0.3), 3),
        "optimizer": rng.choice(["adamw", "adafactor", "lion"]),
        "scheduler": rng.choice(["constant", "cosine"]),
        "warmup_steps": rng.choice([0, 50, 100, 200]),
        "use_ema": rng.choice([False, True]),
        "clip_norm": rng.choice([0.1, 0.5, 1.0, 5.0]),
        "seed": rng.integers(1_000_000),
        "model": "tiny",
    }


_CELLS: Final = list(product([1e-5, 1e-4, 1e-3, 3e-3, 1e-2], [4, 16, 64], ["adamw", "lion"]))


def full_grid(rng: np.random.Generator, place: int) -> Config:
    """Return a run of a grid of 5 x 3 x 2 in three settings, with three more drawn at random."""
    rate, rank, optimizer = _CELLS[place % len(_CELLS)]
    return {
        "learning_rate": rate,
        "lora_rank": rank,
        "optimizer": optimizer,
        "warmup_steps": rng.choice([0, 100]),
        "dropout": rng.choice([0.0, 0.1]),
        "use_ema": rng.choice([False, True]),
        "seed": 0,
    }


def image_search(rng: np.random.Generator, _: int) -> Config:
    """Return a run of a random search over seven settings of another kind, one of them with four values."""
    return {
        "network.dim": rng.choice([8, 16, 24, 48, 96]),
        "noise_offset": rng.choice([0.0, 0.03, 0.06, 0.1]),
        "resolution": rng.choice([512, 768, 1024]),
        "caption_dropout": rng.beta(1.0, 4.0),
        "min_snr_gamma": np.exp(rng.normal(1.6, 0.6)),
        "loss_type": rng.choice(["l2", "huber", "smooth_l1", "l1"], p=[0.4, 0.3, 0.2, 0.1]),
        "prior": rng.choice(["none", "class"], p=[0.7, 0.3]),
        "random_seed": rng.integers(1_000_000),
    }


def review_search(rng: np.random.Generator, place: int) -> Config:
    """Return a run as of the sweep in which a page once missed the learning rate: six rates, seven of them repeats."""
    rate = rng.choice([3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2], p=[0.14, 0.2, 0.26, 0.16, 0.16, 0.08])
    rank, batch = rng.choice([4, 16, 64]), rng.choice([2, 4])
    optimizer = rng.choice(["adamw", "lion", "adafactor"])
    if place < 7:
        rate, rank, batch, optimizer = (1e-4, 64, 4, "adamw") if place < 4 else (3e-4, 16, 4, "adamw")
    scaled = {"lora_rank": rank, "lora_alpha": rank}
    return {"learning_rate": rate, **scaled, "batch_size": batch, "optimizer": optimizer, "seed": place}


# ---------------------------------------------------------------- what the settings do


def _rate(config: Config) -> float:
    return (math.log10(config["learning_rate"]) + 3.5) / 1.5


def _rank(config: Config) -> float:
    return (math.log2(config["lora_rank"]) - 4.5) / 2.5


def _lion(config: Config) -> float:
    return 1.0 if config["optimizer"] == "lion" else -0.5


def _ema(config: Config) -> float:
    return 1.0 if config["use_ema"] else -1.0


def _small(config: Config) -> float:
    """What the other settings add in every sweep."""
    return -0.25 * _rank(config) + (0.15 if config["optimizer"] == "adafactor" else 0.0)


def _weak_at_one(config: Config) -> float:
    return (-1.3 if config["batch_size"] > 4 else -0.4) * _rate(config) + _small(config)


def _grid_middle(config: Config) -> float:
    return 1.5 * (_rate(config) - 0.3) ** 2 - 0.3 * _rank(config)


def _review(config: Config) -> float:
    return (math.log10(config["learning_rate"]) + 2.32 + 0.28 * math.log2(config["lora_rank"])) ** 2


_RATE: Final = ("learning_rate",)

SHAPES: Final = (
    Shape("one setting on a log axis", _RATE, lambda of: -_rate(of) + _small(of)),
    Shape("an optimum in the middle", _RATE, lambda of: 2.2 * _rate(of) ** 2 + _small(of)),
    Shape(
        "a high learning rate diverges", _RATE, lambda of: -0.9 * _rate(of) + _small(of), diverges_above=5e-3
    ),
    Shape(
        "a category of three", ("optimizer",), lambda of: 1.1 * _lion(of) - 0.25 * _rank(of) + 0.2 * _rate(of)
    ),
    Shape("a switch", ("use_ema",), lambda of: 0.9 * _ema(of) + _small(of)),
    Shape("an effect that is weak at one value of another setting", _RATE, _weak_at_one, noise=0.2),
    Shape(
        "two settings that matter equally",
        ("learning_rate", "lora_rank"),
        lambda of: -_rate(of) - 0.95 * _rank(of),
    ),
    Shape(
        "a grid, one setting on a log axis", _RATE, lambda of: -_rate(of) - 0.3 * _rank(of), space=full_grid
    ),
    Shape("a grid, an optimum in the middle", _RATE, _grid_middle, space=full_grid),
)

HARD: Final = (
    Shape(
        "one setting on a log axis, half of it noise", _RATE, lambda of: -_rate(of) + _small(of), noise=0.5
    ),
    Shape(
        "two settings that matter only together",
        ("learning_rate", "use_ema"),
        lambda of: 1.5 * _rate(of) * _ema(of),
        noise=0.2,
    ),
)

_OPTIMA: Final = {"adamw": 0.6, "adafactor": 0.0, "lion": -0.6}
_LOSSES: Final = {"l2": 0.0, "huber": -0.8, "smooth_l1": 0.3, "l1": 1.2}


def _dim(config: Config) -> float:
    return math.log2(config["network.dim"] / 24) / 1.3


def _gamma(config: Config) -> float:
    return (math.log(config["min_snr_gamma"]) - 1.6) / 0.6


_few = partial(Shape, noise=TWO_DEVIATIONS, of_these_runs=True, runs=FEWER)
_images = partial(_few, space=image_search)

HELD_OUT: Final = (
    _images("a saturating effect", ("network.dim",), lambda of: math.exp(-1.5 * _dim(of))),
    _images("a parabola over four values", ("noise_offset",), lambda of: abs(of["noise_offset"] - 0.05) ** 2),
    _images("a category of four, unequal numbers", ("loss_type",), lambda of: _LOSSES[of["loss_type"]]),
    _images(
        "a low threshold of a skewed setting",
        ("caption_dropout",),
        lambda of: float(of["caption_dropout"] > 0.08),
    ),
    _images(
        "the best value of one rises with another",
        ("min_snr_gamma", "network.dim"),
        lambda of: (_gamma(of) - _dim(of)) ** 2,
    ),
    _few(
        "the best learning rate depends on the optimizer",
        ("learning_rate", "optimizer"),
        lambda of: (_rate(of) - _OPTIMA[of["optimizer"]]) ** 2,
    ),
    _images(
        "a threshold, and a fifth of all settings is not recorded",
        ("resolution",),
        lambda of: float(of["resolution"] > 600),
        missing=0.2,
    ),
)

HARDER: Final = (
    _few("a parabola, twelve runs", _RATE, lambda of: (_rate(of) + 0.3) ** 2, runs=12),
    _few("a switch, twelve runs", ("use_ema",), _ema, runs=12),
    Shape("one setting, half of it noise, 24 runs", _RATE, lambda of: -_rate(of), noise=0.5, runs=FEWER),
    _few("one setting, half of the runs only noise", _RATE, lambda of: -_rate(of), useless=0.5),
)

# The noise is a deviation of 0.0018 around a loss of 0.1.
REVIEW: Final = Shape(
    "the sweep of the review, 27 runs",
    ("learning_rate", "lora_rank"),
    _review,
    noise=0.005,
    runs=27,
    space=review_search,
)

_noise = partial(Shape, truth=(), signal=lambda _: 0.0, noise=1.0)

NOISE: Final = (
    _noise("noise, random search"),
    _noise("noise, a grid", space=full_grid),
    _noise("noise with heavy tails", heavy=True),
    _noise("noise, 24 runs", runs=FEWER),
    _noise("noise, twelve runs", runs=12),
    _noise("noise, settings not recorded", runs=FEWER, missing=0.2),
    _noise("noise, a search of another kind", runs=FEWER, space=image_search),
    _noise("noise, few values and repeats", runs=27, space=review_search),
)


EVERY: Final = (*SHAPES, *HELD_OUT, *HARD, *HARDER, REVIEW, *NOISE)


def made_sweep(shape: Shape, number: int, runs: int | None = None) -> list[SweepRun]:
    """Return one sweep of this shape; the same number makes the same one."""
    rng = np.random.default_rng([number, sum(shape.title.encode())])
    configs = shape.configs(rng, runs or shape.runs)
    losses = _losses(shape, configs, rng)
    if shape.missing:
        configs = [{key: one[key] for key in one if rng.random() >= shape.missing} for one in configs]
    return [
        SweepRun(key=f"run{place}", name=f"run{place}", config=config, value=float(loss))
        for place, (config, loss) in enumerate(zip(configs, losses, strict=True))
    ]


def _losses(shape: Shape, configs: Sequence[Config], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    signals = np.array([shape.signal(config) for config in configs])
    noise = rng.standard_t(2, len(configs)) if shape.heavy else rng.normal(size=len(configs))
    if shape.noise < 1.0:
        spread = float(np.std(signals)) if shape.of_these_runs else _signal_spread(shape)
        noise = noise * spread * math.sqrt(shape.noise / (1.0 - shape.noise))
    if shape.useless:
        signals = np.where(rng.random(len(configs)) < shape.useless, rng.permutation(signals), signals)
    losses: np.ndarray[Any, Any] = 0.1 * np.exp(0.15 * (signals + noise))
    if shape.diverges_above is not None:
        rates = np.array([config["learning_rate"] for config in configs])
        losses = np.where(rates > shape.diverges_above, losses * 1e4, losses)
    return losses


def _plain(config: Config) -> Config:
    """Return numbers and texts of Python in place of numpy's."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in config.items()}


@cache
def _signal_spread(shape: Shape) -> float:
    configs = shape.configs(np.random.default_rng(0), 1000)
    return float(np.std([shape.signal(config) for config in configs]))


# ---------------------------------------------------------------- what the page says


def first_named(found: SweepAnswer) -> str | None:
    """Return the setting that the page names first; None if it says that chance explains the differences."""
    return found.factors[0].keys[0] if found.verdict == "decided" else None


def _score_at(place: int, quick: bool) -> dict[str, float]:
    """Judge the answers to sweeps of one of all shapes, in a process of its own; return shares of the sweeps."""
    shape = EVERY[place]
    say(shape.title)
    sweeps = 20 if quick else SWEEPS if shape.truth else NOISE_SWEEPS
    true = _true_share(shape) if shape.truth else 0.0
    said = [answer(made_sweep(shape, number), metric="val_loss") for number in range(sweeps)]
    first = [first_named(one) for one in said]
    right, undecided = sum(one in shape.truth for one in first), first.count(None)
    factors = [factor for one in said for factor in one.factors if factor.keys[0] in shape.truth[:1]]
    # The interval of the true setting held the share that 3,000 runs show.
    covered = sum(factor.low <= true <= factor.high for factor in factors)
    counts = {"right": right, "wrong": sweeps - right - undecided, "undecided": undecided, "covered": covered}
    return {name: count / sweeps for name, count in counts.items()} | {"sweeps": float(sweeps)}


def _true_share(shape: Shape) -> float:
    runs = made_sweep(replace(shape, of_these_runs=False), 10**6, 3000)
    # A seed of its own for each run: runs of a grid with equal settings would count as one.
    runs = [replace(run, config={**run.config, "run": place}) for place, run in enumerate(runs)]
    found = answer(runs, metric="val_loss")
    return next(factor.share for factor in found.factors if factor.keys[0] == shape.truth[0])


def run(options: Options) -> str:
    """Judge all shapes."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        scores = list(pool.map(_score_at, range(len(EVERY)), [options.quick] * len(EVERY)))
    groups = {
        "one setting or one of two matters": SHAPES,
        "held out kinds": HELD_OUT,
        "half of it noise, or matters only together": HARD,
        "few runs, much noise": HARDER,
        "a pair among few values": [REVIEW],
        "nothing but noise": NOISE,
    }
    rows = [_row(name, [scores[EVERY.index(shape)] for shape in shapes]) for name, shapes in groups.items()]
    false = [scores[EVERY.index(shape)] for shape in NOISE]
    named = round(sum((1 - one["undecided"]) * one["sweeps"] for one in false))
    about = (
        f"Made sweeps of 12 to 30 runs over 6 to 10 settings: {SWEEPS} of each kind with an effect, {NOISE_SWEEPS} of "
        "each without. Mean of the kinds, the worst in brackets; the interval is meant to hold the true share in 0.90."
    )
    header = ["what matters", "kinds", "right first", "wrong first", "undecided", "interval holds"]
    noise = f"In nothing but noise a setting is named in {share(named, round(sum(one['sweeps'] for one in false)))}."
    return "\n\n".join([about, table(header, rows), noise])


def _row(name: str, scores: Sequence[Mapping[str, float]]) -> list[str]:
    shares = {what: [one[what] for one in scores] for what in ("right", "wrong", "undecided", "covered")}
    cells = {what: f"{fmean(of):.2f} ({min(of):.2f})" if any(of) else "-" for what, of in shares.items()}
    cells["wrong"] = f"{fmean(shares['wrong']):.2f} ({max(shares['wrong']):.2f})"
    cells["undecided"] = f"{fmean(shares['undecided']):.2f}"
    return [name, str(len(scores)), *cells.values()]
