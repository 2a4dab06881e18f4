"""Runs whose steps say where their time went, written by the logger on a clock that runs ahead; and plain ledgers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.timing.ledger import Ledger, Line
from toolkit.telemetry.timing.names import ENTRIES

BEGAN = 1_700_000_000.0

USUAL: Mapping[str, float] = {"training": 0.83, "data_wait": 0.08, "validation": 0.04, "checkpoint": 0.02}
"""Seconds of each second; what is left was in no span."""


def write_timed_run(
    root: Path,
    name: str = "timed",
    *,
    shares: Mapping[str, float] = USUAL,
    sessions: Sequence[Sequence[int]] = (range(1, 101),),
    step_s: float = 20.0,
    startup_s: float = 120.0,
    pause_s: float = 600.0,
    power_w: float | None = None,
    perf_tags: Sequence[str] = (),
    session_tag: str | None = None,
    began: float = BEGAN,
    noise: float = 0.03,
) -> Path:
    """Write a run of these sessions (their steps; one that begins behind an earlier one's end does its steps again).

    `shares` is how each step's seconds are given; no shares at all make a run that tells nothing. Each session but the
    last ends `pause_s` before the next begins.
    """
    chance = random.Random(name)
    began_at = began
    folder = root / name
    for number, steps in enumerate(sessions):
        clock = ManualClock(began_at)
        tag = perf_tags[min(number, len(perf_tags) - 1)] if perf_tags else None
        log = TelemetryLogger(
            name,
            log_dir=root,
            clock=clock,
            log_every=1,
            csv=False,
            system=False,
            diagnostics=False,
            resume=number > 0,
            perf_tag=tag,
            session_tag=session_tag,
        )
        folder = log.run_folder
        clock.advance(startup_s)
        for step in steps:
            took = step_s * (1 + noise * chance.gauss(0, 1))
            clock.advance(took)
            reported = {f"ledger/{entry}": share * took for entry, share in shares.items()}
            if step == steps[0] and shares:
                reported["ledger/startup"] = startup_s
            if power_w is not None:
                log.log_event("system", **{"gpu/0/power_w": power_w})
            log.log_step(step, train_loss=1.0 / step, lr=1e-4, samples_per_sec=4 / took, **reported)
        log.close()
        began_at = clock.wall() + pause_s
    return folder


def ledger(**shares: float) -> Ledger:
    """Return a ledger of 1,000 s with these shares."""
    return Ledger(
        lines=tuple(
            Line(
                entry=entry,
                seconds=1000 * shares.get(entry, 0.0),
                share=shares.get(entry, 0.0),
                kwh=None,
                inferred=False,
            )
            for entry in ENTRIES
        ),
        wall_s=1000.0,
        goodput=shares.get("training", 0.0),
        kwh=None,
        between_sessions_s=0.0,
        notes=(),
        sessions=(),
    )
