"""What is done to a training so that something goes wrong in it, and the settings of trainings without a fault."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from evaluations.made_curves.settings import CONSTANT, COSINE, LINEAR, RESTARTS, STEPS, WSD, Settings

RATES = {
    "mlp": 3e-3,
    "gpt": 4e-3,
    "cnn": 3e-3,
    "lora": 4e-3,
    "policy": 3e-3,
    "gan": 1e-3,
    "vae": 2e-3,
    "rnn": 5e-3,
    "diffusion": 3e-3,
}
"""A learning rate of AdamW that each family learns well with."""
_SGD = {"mlp": 0.03, "cnn": 0.05, "lora": 0.05}
_LONGEST = {"gpt": 900, "rnn": 1200, "gan": 1500, "cnn": 1600, "vae": 1600}
_OTHERS_LONGEST = 3200
_SEEN = ("mlp", "gpt", "cnn", "lora", "vae", "rnn", "diffusion")
"""Families with a validation loss."""
_LABELLED = ("mlp", "gpt", "cnn", "lora", "rnn")
ALL = tuple(RATES)
INSTABILITY = ("spike", "divergence", "nan", "exploding_grad")

Change = Callable[[random.Random, Settings], tuple[Settings, int]]
"""Returns the settings with the fault, and the first step that it acts on."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which a training goes wrong."""

    families: tuple[str, ...]
    change: Change
    expected: tuple[str, ...]
    """Kinds that may follow; whether they do is measured."""
    weight: int = 2
    """How many runs have it, relative to others."""
    start: Callable[[random.Random, Settings], Settings] | None = None
    """What the twin needs too, such as evaluations."""


def plain(dice: random.Random, seed: int, family: str, share: float = 1.0) -> Settings:
    """Return settings of a training without a fault: what people use, chosen by chance."""
    longest = int(_LONGEST.get(family, _OTHERS_LONGEST) * share)
    log_every = dice.choice((1, 1, 1, 5, 5, 10, 10, 50))
    records = int(60 * (2000 / 60) ** dice.random())
    steps = min(longest, records * log_every)
    while log_every > 1 and steps // log_every < 60:
        log_every = {50: 10, 10: 5, 5: 1}[log_every]
    is_sgd = family in _SGD and dice.random() < 0.25
    rate = (_SGD if is_sgd else RATES)[family] * 10 ** dice.uniform(-0.5, 0.1)
    schedule = dice.choice((COSINE, COSINE, LINEAR, CONSTANT, CONSTANT, WSD, STEPS))
    batch = dice.choice((8, 16, 16, 32))
    return Settings(
        family=family,
        seed=seed,
        steps=steps,
        log_every=log_every,
        eval_every=_evaluations(dice, steps) if family in _SEEN and dice.random() < 0.5 else 0,
        logs=dice.choice(("mean", "last")),
        batch=batch,
        lr=rate,
        schedule=schedule,
        lowest=dice.choice((0.0, 0.0, 0.1)),
        warm_up=int(steps * dice.choice((0.0, 0.02, 0.05, 0.1))),
        optimizer="sgd" if is_sgd else "adamw",
        beta2=dice.choice((0.95, 0.99, 0.999)),
        weight_decay=dice.choice((0.0, 0.01, 0.1)),
        clip=dice.choice((0.0, 1.0, 1.0)),
        width=dice.choice((24, 32, 48)),
        depth=dice.choice((1, 2, 2, 3)),
        noise=dice.choice((0.05, 0.2, 0.5, 1.0)),
        scale=1.0 if is_sgd else dice.choice((1.0, 1.0, 0.05, 20.0)),
    )


def look_alike(dice: random.Random, settings: Settings) -> Settings:
    """Return settings of a training that is right and looks as if it were not."""
    kind = dice.randrange(6)
    changes: list[dict[str, Any]] = [
        {"batch": dice.choice((1, 2)), "logs": "last", "noise": 0.5, "lr": settings.lr / 3},
        {"schedule": RESTARTS, "warm_up": 0},
        {"schedule": COSINE, "lowest": 0.0, "steps": settings.steps},
        {"warm_up": settings.steps // 4, "schedule": LINEAR},
        {"noise": 2.0},
        {"schedule": STEPS, "lr": settings.lr * 1.2},
    ]
    return replace(settings, **changes[kind])


def _evaluations(dice: random.Random, steps: int) -> int:
    return max(1, steps // dice.choice((10, 20, 30, 50)))


def _somewhere(dice: random.Random, settings: Settings, first: float = 0.2, last: float = 0.8) -> int:
    return max(2, int(settings.steps * dice.uniform(first, last)))


def _between(dice: random.Random, low: float, high: float) -> float:
    return math.exp(dice.uniform(math.log(low), math.log(high)))


def _rate(low: float, high: float) -> Change:
    def change(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
        return replace(settings, lr_factor=_between(dice, low, high), clip=0.0), 1

    return change


def _no_warm_up(_: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, warm_up=0), 1


def _needs_warm_up(dice: random.Random, settings: Settings) -> Settings:
    factor = _between(dice, 3, 10)
    return replace(settings, warm_up=settings.steps // 5, lr=settings.lr * factor, clip=0.0, beta2=0.999)


def _jump(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings)
    lasts = dice.choice((0, max(1, settings.steps // 50), max(2, settings.steps // 12)))
    jump = _between(dice, 8, 80)
    return replace(settings, jump_step=step, jump=jump, jump_for=lasts, clip=0.0), step


def _dead_rate(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings, 0.05, 0.3)
    return replace(settings, jump_step=step, jump=0.0), step


def _bad_batches(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings)
    count = dice.choice((1, 1, 2, 5)) if settings.log_every < 10 else dice.choice((2, 5, 10))
    steps = tuple(range(step, min(settings.steps, step + count)))
    return replace(settings, bad_steps=steps, bad_size=_between(dice, 5, 40), clip=0.0), step


def _long_samples(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    steps = tuple(sorted({_somewhere(dice, settings, 0.25, 0.9) for _ in range(dice.choice((1, 2, 3)))}))
    return replace(settings, long_steps=steps, long_size=_between(dice, 15, 150), clip=0.0), steps[0]


def _wrong_labels(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings)
    return replace(settings, wrong_labels_from=step, wrong_labels=dice.uniform(0.3, 1.0)), step


def _other_data(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings)
    return replace(settings, other_data_from=step), step


def _repeats(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings, 0.2, 0.5)
    return replace(settings, repeats_from=step), step


def _half(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    doubles = max(1, settings.steps // dice.choice((8, 16, 24)))
    return replace(settings, half_scale=_between(dice, 512, 8192), half_doubles=doubles), 1


def _frozen(_: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, frozen=True), 1


def _few_samples(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, rows=int(_between(dice, 16, 200))), 1


def _saturated(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, initial_scale=dice.choice((1e-3, 1e-2, 30.0, 100.0))), 1


def _decay(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, weight_decay=_between(dice, 20, 100)), 1


def _state_lost(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings)
    return replace(settings, state_lost_step=step), step


def _beta2(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, beta2=dice.choice((0.1, 0.3, 0.5)), clip=0.0), 1


def _broken_evals(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    count = settings.steps // settings.eval_every
    first = dice.randint(5, count - 4)
    steps = tuple((first + place) * settings.eval_every for place in range(dice.choice((1, 1, 2, 3))))
    return replace(settings, broken_evals=steps), steps[0]


def _slow(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    step = _somewhere(dice, settings, 0.35, 0.75)
    return replace(settings, slow_from=step, slow_s=_between(dice, 0.0015, 0.008)), step


def _starved(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, slow_from=1, slow_s=_between(dice, 0.0015, 0.006)), 1


def _leak(dice: random.Random, settings: Settings) -> tuple[Settings, int]:
    return replace(settings, leak_mib=dice.uniform(1300, 2200) / settings.steps), 1


def _with_evaluations(dice: random.Random, settings: Settings) -> Settings:
    return replace(settings, eval_every=max(1, settings.steps // dice.choice((15, 25, 40))))


def _logged_often(_: random.Random, settings: Settings) -> Settings:
    return replace(settings, log_every=1, steps=max(400, min(900, settings.steps)), eval_every=0)


def _steady(_: random.Random, settings: Settings) -> Settings:
    rate = RATES[settings.family]
    return replace(settings, optimizer="adamw", lr=max(settings.lr, rate / 2), schedule=CONSTANT, warm_up=0)


_HEAVY = ("gpt", "cnn", "rnn", "vae")
"""Families whose steps take long enough that a clock says something."""

CAUSES: dict[str, Cause] = {
    "lr_far_too_high": Cause(ALL, _rate(30, 1000), (*INSTABILITY, "plateau"), 3),
    "lr_too_high": Cause(ALL, _rate(5, 25), (*INSTABILITY, "plateau"), 3),
    "warm_up_missing": Cause(
        ("gpt", "mlp", "cnn", "rnn", "vae"), _no_warm_up, (*INSTABILITY, "plateau"), 2, _needs_warm_up
    ),
    "lr_jump": Cause(ALL, _jump, INSTABILITY, 4),
    "lr_zero": Cause(_SEEN, _dead_rate, ("plateau",), 1, _steady),
    "lr_too_small": Cause(_SEEN, _rate(1e-5, 3e-3), ("plateau",), 3, _steady),
    "frozen_weights": Cause(_SEEN, _frozen, ("plateau", "vanishing_grad"), 2, _steady),
    "bad_initial_weights": Cause(
        ("mlp", "gpt", "cnn", "rnn", "vae"), _saturated, ("plateau", "vanishing_grad", *INSTABILITY), 2
    ),
    "weight_decay_too_strong": Cause(_SEEN, _decay, ("plateau", *INSTABILITY), 2, _steady),
    "bad_batch": Cause(ALL, _bad_batches, INSTABILITY, 4),
    "long_sample": Cause(_SEEN, _long_samples, INSTABILITY, 3),
    "wrong_labels": Cause(_LABELLED, _wrong_labels, INSTABILITY, 3),
    "other_data": Cause(("mlp", "gpt", "cnn", "vae", "lora"), _other_data, INSTABILITY, 2),
    "state_lost": Cause(_SEEN, _state_lost, INSTABILITY, 1),
    "beta2_too_low": Cause(ALL, _beta2, INSTABILITY, 1),
    "half_precision": Cause(ALL, _half, INSTABILITY, 2),
    "few_samples": Cause(_SEEN, _few_samples, ("overfit",), 4, _with_evaluations),
    "repeated_batch": Cause(_LABELLED, _repeats, ("overfit",), 2, _with_evaluations),
    "broken_evaluation": Cause(_SEEN, _broken_evals, ("val_spike",), 2, _with_evaluations),
    "slow_loader": Cause(_HEAVY, _slow, ("throughput_drop", "data_starvation"), 3),
    "loader_too_slow": Cause(_HEAVY, _starved, ("data_starvation",), 1),
    "memory_growth": Cause(_HEAVY, _leak, ("mem_leak",), 1, _logged_often),
}
