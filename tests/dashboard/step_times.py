"""Step times with noise of a known kind, and the jobs that they are of."""

from __future__ import annotations

import math

import numpy as np

from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.runs.columns.speed import groups_of, jobs_of


def step_times(seed, count=400, *, seconds=0.5, noise=0.06, memory=0.0):
    """Return step times around `seconds`; `memory` is how much of its neighbour each one keeps."""
    fresh = np.random.default_rng(seed).normal(size=count) * math.sqrt(1 - memory**2)
    kept = np.empty(count)
    last = fresh[0] / math.sqrt(1 - memory**2)
    for place, value in enumerate(fresh):
        last = kept[place] = memory * last + value
    return seconds * np.exp(noise * kept)


def jobs(times, *, run="r", tag=None, began=0.0, **columns):
    """Return the jobs of a run that has a session for each of `times`."""
    sessions = [
        Session(session=number, started=began + number, pid=1, host=f"host-{number}", perf_tag=tag)
        for number in range(1, len(times) + 1)
    ]
    table = {
        "session": np.concatenate([np.full(len(part), float(n)) for n, part in enumerate(times, 1)]),
        "global_step": np.concatenate([np.arange(len(part), dtype=float) for part in times]),
        "sec_per_step": np.concatenate(times),
        **columns,
    }
    return jobs_of(run, run, sessions, (), table)


def group(name, times, **columns):
    (found,) = groups_of(jobs(times, run=name, tag=name, **columns))
    return found
