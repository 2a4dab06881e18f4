"""Synthetic runs that learn the wrong thing or nothing, and look-alikes that are as they should be."""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

Record = dict[str, Any]
Fault = tuple[list[Record], int]
"""A run with a fault, and the step at which it begins."""
Course = Callable[[float], float]
"""Returns a value from the part of the run that is over."""

made: Any = importlib.import_module("tests.diagnostics.synthetic_runs")
"""The runs that the detectors' own tests use; tests are not typed."""

RECORDS = 400
_PLAN: Record = {"event": "start", "session": 1, "max_steps": 100_000}


def _policy(seed: int, noise: float, **courses: Course) -> list[Record]:
    """Return a run of reinforcement learning: reward and KL rise, entropy falls to a fifth; each can be replaced."""
    dice = random.Random(seed)
    usual: dict[str, Course] = {
        "reward": lambda part: 0.2 + 0.6 * part,
        "kl": lambda part: 0.001 + 0.08 * part,
        "completions/mean_length": lambda part: 200.0 + 150.0 * part,
        "entropy": lambda part: 0.6 * (1.0 - 0.8 * part),
    }
    return [
        {
            "event": "step",
            "global_step": step,
            "loss": dice.gauss(0.0, 0.01),
            **{
                name: course(step / RECORDS) * dice.lognormvariate(0.0, noise)
                for name, course in {**usual, **courses}.items()
            },
        }
        for step in range(RECORDS)
    ]


def _explodes(begins: float, speed: float) -> Course:
    return lambda part: 0.02 + 0.02 * part + (2.0 ** ((part - begins) * speed) if part > begins else 0.0)


def _falls_to(begins: float, share: float) -> Course:
    return lambda part: 0.6 * (1.0 - 0.5 * part) * (share if part >= begins else 1.0)


def _hacks(seed: int) -> Iterator[Fault]:
    for noise, begins, speed in itertools.product((0.15, 0.3), (0.4, 0.7), (10.0, 25.0)):
        yield _policy(seed, noise, kl=_explodes(begins, speed)), int(begins * RECORDS)


def _does_not_hack(seed: int) -> Iterator[list[Record]]:
    for noise in (0.15, 0.3):
        yield _policy(seed, noise)
        yield _policy(seed, noise, kl=lambda part: 0.5 * part * part)
        yield _policy(seed, noise, kl=_explodes(0.6, 25.0), reward=lambda part: 0.8 - 0.6 * part)


def _collapses(seed: int) -> Iterator[Fault]:
    for noise, begins, share in itertools.product((0.15, 0.3), (0.3, 0.7), (0.05, 0.01, 0.0)):
        yield _policy(seed, noise, entropy=_falls_to(begins, share)), int(begins * RECORDS)


def _does_not_collapse(seed: int) -> Iterator[list[Record]]:
    for noise in (0.15, 0.3):
        yield _policy(seed, noise)
        supervised = _policy(seed, noise, entropy=_falls_to(0.3, 0.01))
        yield [{name: value for name, value in record.items() if name != "reward"} for record in supervised]


def _leaked(seed: int, after: int, share: float, noise: float) -> list[Record]:
    losses = made.curve(seed, first=2.0, last=2.0, noise=noise)
    return made.run_of([loss * (share if place >= after else 1.0) for place, loss in enumerate(losses)])  # type: ignore[no-any-return]


def _leaks(seed: int) -> Iterator[Fault]:
    for after, share, noise in itertools.product((3, 10, 25), (0.008, 0.001), (0.05, 0.3)):
        yield [_PLAN, *_leaked(seed, after, share, noise)], after
    yield [_PLAN, *made.run_of([0.0] * 100, grad_norm=[0.0] * 100)], 0


def _does_not_leak(seed: int) -> Iterator[list[Record]]:
    for noise in (0.05, 0.3):
        yield [_PLAN, *_leaked(seed, 60, 0.001, noise)]
        yield [_PLAN, *_leaked(seed, 10, 0.1, noise)]


def _adapter(seed: int, norms: list[float], name: str) -> list[Record]:
    return made.run_of(made.curve(seed)[: len(norms)], lr=[1e-4] * len(norms), **{name: norms})  # type: ignore[no-any-return]


def _is_dead(seed: int) -> Iterator[Fault]:
    for name, begins in itertools.product(("lora_B_grad_norm", "lora_B_norm"), (0, 100, 200)):
        yield _adapter(seed, [0.1] * begins + [0.0] * (300 - begins), name), begins


def _is_not_dead(seed: int) -> Iterator[list[Record]]:
    dice = random.Random(seed)
    # The B matrices start at zero and move with the first steps.
    yield _adapter(seed, [0.0] * 5 + [dice.lognormvariate(-9.0, 1.0) for _ in range(295)], "lora_B_grad_norm")


def _still(seed: int, rate: float, noise: float, last: float = 2.0) -> list[Record]:
    losses = made.curve(seed, records=RECORDS, noise=noise, first=2.0, last=last)
    return made.run_of(losses, lr=[rate] * RECORDS, grad_norm=[0.8] * RECORDS)  # type: ignore[no-any-return]


def _does_not_move(seed: int) -> Iterator[Fault]:
    for rate, noise in itertools.product((1e-9, 5e-8), (0.004, 0.05, 0.2)):
        yield _still(seed, rate, noise), 0


def _moves(seed: int) -> Iterator[list[Record]]:
    for rate, noise in itertools.product((5e-8, 1e-4), (0.004, 0.05, 0.2)):
        yield _still(seed, rate, noise, last=1.2)


def _epochs(seed: int, per_epoch: int, fall: float, *, shuffled: bool, noise: float) -> list[Record]:
    dice = random.Random(seed)
    batches = [dice.gauss(0.0, 0.1) for _ in range(per_epoch)]
    level, step, records = 2.0, 0, []
    for epoch in range(6):
        if shuffled:
            dice.shuffle(batches)
        for place, batch in enumerate(batches):
            step += 10
            loss = level * (1.0 + batch + dice.gauss(0.0, noise))
            at = round(epoch + (place + 1) / per_epoch, 4)
            records.append({"event": "step", "global_step": step, "loss": loss, "epoch": at})
        level *= 1.0 - fall
    return records


def _repeats(seed: int) -> Iterator[Fault]:
    for per_epoch, fall, noise in itertools.product((20, 60, 300), (0.0, 0.3), (0.01, 0.04)):
        yield _epochs(seed, per_epoch, fall, shuffled=False, noise=noise), 10 * per_epoch


def _does_not_repeat(seed: int) -> Iterator[list[Record]]:
    for per_epoch, noise in itertools.product((20, 60, 300), (0.01, 0.04)):
        yield _epochs(seed, per_epoch, 0.02, shuffled=True, noise=noise)


def _zero_norms(seed: int, share: float, scale: float) -> list[Record]:
    dice = random.Random(seed)
    norms = [0.0 if place >= 100 and dice.random() < share else 0.5 for place in range(300)]
    return made.run_of(made.curve(seed), grad_norm=norms, loss_scale=[scale] * 300)  # type: ignore[no-any-return]


def _zero_shares(seed: int, before: float, after: float) -> list[Record]:
    dice = random.Random(seed)
    levels = [before] * 100 + [after] * 200
    shares = [min(1.0, level * dice.lognormvariate(0.0, 0.1)) for level in levels]
    return made.run_of(made.curve(seed), zero_grad_share=shares)  # type: ignore[no-any-return]


def _underflows(seed: int) -> Iterator[Fault]:
    for share in (0.3, 0.5, 0.8):
        yield _zero_norms(seed, share, 1.0), 100
    for after in (0.65, 0.9):
        yield _zero_shares(seed, 0.1, after), 100


def _does_not_underflow(seed: int) -> Iterator[list[Record]]:
    yield _zero_norms(seed, 0.05, 1.0)
    yield _zero_norms(seed, 0.05, 1024.0)
    yield _zero_shares(seed, 0.75, 0.8)


FAULTS: dict[str, Callable[[int], Iterator[Fault]]] = {
    "reward_hacking": _hacks,
    "policy_collapse": _collapses,
    "label_leak": _leaks,
    "dead_lora": _is_dead,
    "lr_too_small": _does_not_move,
    "data_repeated": _repeats,
    "underflow": _underflows,
}
LOOK_ALIKES: dict[str, Callable[[int], Iterator[list[Record]]]] = {
    "reward_hacking": _does_not_hack,
    "policy_collapse": _does_not_collapse,
    "label_leak": _does_not_leak,
    "dead_lora": _is_not_dead,
    "lr_too_small": _moves,
    "data_repeated": _does_not_repeat,
    "underflow": _does_not_underflow,
}
"""Runs with the same metrics, in which nothing of that kind is wrong."""
