"""The cost of a call with far more data than a record can hold."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from benchmarks.child import measure_in_child
from benchmarks.command import Options, run_alone, say
from benchmarks.report import Claim, Report
from toolkit.telemetry import TelemetryLogger

_PROSE = "the loss of a model goes down while its learning rate stays and every token counts the same"
_TITLES = {
    "metrics": "a step with 10,000 metrics",
    "text": "a configuration with a text of 100 MB",
    "texts": "a configuration with 100,000 texts, 100 MB",
    "completion": "a completion of 130,000 characters",
    "full": "an event with a text of 60,000 characters",
}
_LIMITS_MS = {"metrics": 50.0, "text": 50.0, "texts": 200.0, "completion": 12.0, "full": 12.0}
"""Limit for a call; a full record takes about a tenth of it, and a busy machine may need the rest."""


def build(options: Options) -> Report:
    """Time each kind of call on its thread, the first one and later ones."""
    rounds = 3 if options.quick else 15
    say("large values")
    found = measure_in_child(time_calls, rounds)
    figures = {
        name: {"first_ms": times[0], "ms": statistics.median(times[1:])} for name, times in found.items()
    }
    return Report(
        name="large_values",
        title="A call with more data than a record can hold, processor time of the caller's thread",
        columns=["call", "first ms", "then ms"],
        rows=[
            [title, f"{figures[name]['first_ms']:.1f}", f"{figures[name]['ms']:.1f}"]
            for name, title in _TITLES.items()
        ],
        figures=figures,
        claims=[
            Claim(text=title, measured=figures[name]["ms"], limit=_LIMITS_MS[name], unit=" ms")
            for name, title in _TITLES.items()
        ],
    )


def time_calls(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call, by kind."""
    chance = random.Random(0)
    prose = " ".join(chance.choices(_PROSE.split(), k=200_000))
    metrics = {f"layer_{number}/norm_of_the_gradient": number / 7 for number in range(10_000)}
    texts = {
        f"part_{n}": {f"text_{m}": prose[n * m : n * m + 1_000] for m in range(100)} for n in range(1_000)
    }
    big = prose * 100
    # Steps far apart, so that each completion is the first of its interval and is kept.
    steps = count(1_000, 1_000)
    with TelemetryLogger("large", log_dir=folder, log_every=1, system=False, csv=False) as log:
        log.log_start()
        calls: dict[str, Callable[[], None]] = {
            "metrics": lambda: log.log_step(next(steps), train_loss=1.0, **metrics),
            "text": lambda: log.log_start(config={"text": big, "lr": 1e-4}),
            "texts": lambda: log.log_start(config=texts),
            "completion": lambda: log.log_completion(next(steps), "why?", prose[:130_000]),
            "full": lambda: log.log_event("note", text=prose[:60_000]),
        }
        return {name: list(_times(call, rounds)) for name, call in calls.items()}


def _times(call: Callable[[], None], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        began = time.thread_time()
        call()
        yield (time.thread_time() - began) * 1_000
        time.sleep(0.05)


if __name__ == "__main__":
    run_alone(build)
