"""The made sweeps: sixteen trainings of one task that differ in a few settings, each to its end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from evaluations.made_curves.causes import RATES
from evaluations.made_curves.file import MadeSweep, SweepRun
from evaluations.made_curves.settings import CONSTANT, COSINE, LINEAR, WSD, Settings
from evaluations.made_curves.trainings import train

RUNS = 16
FAMILIES = ("mlp", "gpt", "cnn", "lora", "vae", "rnn", "diffusion")
_STEPS = {"gpt": (200, 450), "rnn": (250, 600)}
_OTHERS_STEPS = (400, 1200)
_RECORDS = 120
"""About how many records of the training loss a run has."""
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "beta2": (0.9, 0.95, 0.99, 0.999),
    "weight_decay": (0.0, 0.01, 0.1, 0.5),
    "batch": (4, 8, 16, 32),
    "width": (16, 24, 32, 48),
    "depth": (1, 2, 3),
    "clip": (0.0, 0.3, 1.0),
    "schedule": (CONSTANT, LINEAR, COSINE, WSD),
}


def jobs_of(number: int, length: float = 1.0) -> list[dict[str, Any]]:
    """Return the sixteen runs of sweep `number`: sixteen draws of the settings that it varies."""
    dice = random.Random(1_000_000 + number)
    family = FAMILIES[number % len(FAMILIES)]
    low, high = _STEPS.get(family, _OTHERS_STEPS)
    steps = int(dice.randint(low, high) * length)
    schedule = dice.choice((COSINE, COSINE, LINEAR, WSD, CONSTANT))
    settings = Settings(
        family=family,
        seed=50_000 + number,
        steps=steps,
        log_every=max(1, steps // _RECORDS),
        eval_every=max(1, steps // dice.choice((20, 30, 40, 60))),
        batch=dice.choice((8, 16)),
        rows=dice.choice((400, 1500, 4096)),
        schedule=schedule,
        lowest=dice.choice((0.0, 0.1)),
        warm_up=steps // 20,
        clip=dice.choice((0.0, 1.0)),
        noise=dice.choice((0.1, 0.3, 0.8)),
    )
    others = dice.sample(sorted(_CHOICES), dice.choice((0, 1, 2, 2)))
    varied = ["lr", *others]
    return [
        {
            "sweep": f"{number:03d}-{family}",
            "varied": varied,
            "settings": asdict(
                replace(
                    settings,
                    order_seed=place + 1,
                    lr=RATES[family] * 10 ** dice.uniform(-1.7, 1.0),
                    **{name: dice.choice(_CHOICES[name]) for name in others},
                )
            ),
        }
        for place in range(RUNS)
    ]


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Train one run of a sweep."""
    columns = train(Settings.from_mapping(job["settings"]))
    names = ("step", "train_loss", "lr", "eval_step", "val_loss")
    return {**job, "columns": {name: columns[name] for name in names}}


def groups(found: Iterable[dict[str, Any]]) -> list[MadeSweep]:
    """Return the sweeps of which all runs are there."""
    by_sweep: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_sweep.setdefault(one["sweep"], []).append(one)
    return [
        MadeSweep(
            id=name,
            family=name.partition("-")[2],
            varied=runs[0]["varied"],
            runs=[_run_of(run) for run in sorted(runs, key=lambda run: run["settings"]["order_seed"])],
        )
        for name, runs in sorted(by_sweep.items())
        if len(runs) == RUNS
    ]


def _run_of(one: dict[str, Any]) -> SweepRun:
    settings = Settings.from_mapping(one["settings"])
    return SweepRun(seed=settings.order_seed, settings=settings, columns=one["columns"])
