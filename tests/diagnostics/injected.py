"""Synthetic runs with injected faults, for kinds without labelled real curves, and runs without any."""

from __future__ import annotations

import importlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.diagnose_eval import injected_learning
from benchmarks.diagnose_eval.ours import predictions
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.finding import INFO

Record = dict[str, Any]
Fault = tuple[list[Record], int]
"""A run with a fault, and the step at which it begins."""

Change = Callable[[int, Any], Any]
"""Returns the replacement for a value, from its step and the value."""

made: Any = importlib.import_module("tests.diagnostics.synthetic_runs")
"""The runs that the detectors' own tests use; tests are not typed."""

SEEDS = range(10)
BEGINS = 2000


def measure() -> dict[str, Any]:
    """Return, per kind, how many faults were injected and found, and the findings on runs without one."""
    kinds = {kind: _found(kind, faults) for kind, faults in {**FAULTS, **injected_learning.FAULTS}.items()}
    for kind, runs_of in injected_learning.LOOK_ALIKES.items():
        kinds[kind].update(_falsely_found(kind, runs_of))
    runs = 0
    alarms: dict[str, int] = {}
    for records in _clean():
        runs += 1
        for event in predictions(records):
            if event["severity"] != INFO:
                alarms[event["kind"]] = alarms.get(event["kind"], 0) + 1
    return {"kinds": kinds, "clean_runs": runs, "false_alarms": alarms}


def _found(kind: str, faults: Callable[[int], Iterator[Fault]]) -> dict[str, int]:
    injected = found = info = 0
    for seed in SEEDS:
        for records, begins in faults(seed):
            injected += 1
            loud = [
                finding.severity != INFO
                for finding in examine(records)
                if finding.kind == kind
                and (finding.noticed_step or 0) >= begins
                and (finding.end_step is None or finding.end_step >= begins)
            ]
            found += any(loud)
            info += bool(loud) and not any(loud)
    return {"injected": injected, "found": found, "info": info}


def _falsely_found(kind: str, runs_of: Callable[[int], Iterator[list[Record]]]) -> dict[str, int]:
    """Return how many look-alikes there are, and on how many the kind was reported, as a warning or as `info`."""
    count = loud = info = 0
    for seed in SEEDS:
        for records in runs_of(seed):
            severities = [finding.severity for finding in examine(records) if finding.kind == kind]
            count += 1
            loud += any(severity != INFO for severity in severities)
            info += bool(severities) and all(severity == INFO for severity in severities)
    return {"look_alikes": count, "look_alikes_hit": loud, "look_alikes_info": info}


def _clean() -> Iterator[list[Record]]:
    """Synthetic runs without a fault, with the metrics that detectors read."""
    for number, (_, records) in enumerate(made.clean_runs()):
        yield _with_everything(number, records)


def _with_everything(seed: int, records: list[Record]) -> list[Record]:
    dice = random.Random(seed)
    scale = 2.0**20

    def next_scale(_: int) -> float:
        # Settles within the first records; later it doubles now and then, and the next overflow halves it.
        nonlocal scale
        if scale > 2.0**15 or (scale == 2.0**15 and dice.random() < 0.5):
            scale /= 2.0
        elif dice.random() < 0.02:
            scale *= 2.0
        return scale

    share = dice.choice((0.02, 0.1, 0.15))
    records = made.added(records, "loss_scale", next_scale)
    records = [
        {**record, "data_time_s": record["sec_per_step"] * share * dice.lognormvariate(0.0, 0.3)}
        if record["event"] == "step"
        else record
        for record in records
    ]
    return list(made.among_ranks(records, dice, dice.choice((2, 4, 8))))


def _scaled(begins: int, factor: float) -> Change:
    return lambda step, value: value * factor if step >= begins else value


def _stays(begins: int, level: float, noise: float, dice: random.Random) -> Change:
    return lambda step, loss: _noisy(level, noise, dice) if step >= begins else loss


def _noisy(level: float, noise: float, dice: random.Random) -> float:
    return level * math.exp(dice.gauss(0.0, noise))


def _vanishes(seed: int) -> Iterator[Fault]:
    for noise, share, level in itertools.product((0.02, 0.1, 0.3), (1e-9, 0.0), (1.2, 1.7)):
        records = made.changed(made.clean_run(seed, noise=noise), "grad_norm", _scaled(BEGINS, share))
        yield made.changed(records, "train_loss", _stays(BEGINS, level, noise, random.Random(seed))), BEGINS


def _leaks(seed: int) -> Iterator[Fault]:
    def grows(per_step: float) -> Change:
        return lambda step, held: held + per_step * max(0, step - BEGINS)

    records = made.clean_run(seed, records=800)
    for mib_per_step in (0.5, 1.0, 3.0):
        yield made.changed(records, "cpu_mem_rss_mb", grows(mib_per_step)), BEGINS
        yield made.changed(records, "gpu_mem_allocated", grows(mib_per_step / 1024.0)), BEGINS


def _stalls(seed: int) -> Iterator[Fault]:
    for log_every, heartbeats in itertools.product((1, 10, 100), (True, False)):
        records = made.clean_run(seed, log_every=log_every, with_system=heartbeats)
        yield made.paused(records, 200 * log_every, 2000.0, heartbeats=heartbeats), 200 * log_every


def _learning_rate(seed: int) -> Iterator[Fault]:
    dice = random.Random(seed)

    def climbs(noise: float) -> Change:
        def loss_at(step: int, _: float) -> float:
            level = 2.0 - 0.2 * min(1.0, step / 500) + 3.0 * max(0.0, (step - 1000) / 1000)
            return _noisy(min(level, 7.0), noise, dice)

        return loss_at

    for noise in (0.02, 0.1, 0.2):
        records = made.changed(made.clean_run(seed, noise=noise), "lr", _scaled(BEGINS, 0.0))
        yield made.changed(records, "train_loss", _stays(BEGINS, 1.2, noise, dice)), BEGINS
        yield made.changed(made.clean_run(seed, records=2000), "train_loss", climbs(noise)), 1000


def _overflows(seed: int) -> Iterator[Fault]:
    dice = random.Random(seed)

    def falls(every: int, times: int) -> Callable[[int], float]:
        return lambda step: 65536.0 / 2 ** min(times, max(0, (step - BEGINS) // every + 1))

    def skips(share: float) -> Change:
        return lambda step, norm: math.inf if step >= BEGINS and dice.random() < share else norm

    for every, times in itertools.product((10, 30, 80), (4, 16)):
        yield made.added(made.clean_run(seed), "loss_scale", falls(every, times)), BEGINS
    for share in (0.2, 0.4):
        yield made.changed(made.clean_run(seed), "grad_norm", skips(share)), BEGINS


def _lags(seed: int) -> Iterator[Fault]:
    def slow_in(slow_part: str, slow: int, share: float) -> Callable[[int, int, str], float]:
        return lambda rank, step, part: share if (rank, part) == (slow, slow_part) and step >= BEGINS else 0.0

    for part, count, share in itertools.product(("data_loading", "forward"), (2, 4, 16), (0.3, 0.5, 1.0)):
        dice = random.Random(seed)
        records = made.clean_run(seed, with_rate=False)
        slow = slow_in(part, dice.randrange(count), share)
        yield list(made.among_ranks(records, dice, count, slow)), BEGINS


def _slower(seed: int) -> Iterator[Fault]:
    for share, noise, with_rate in itertools.product((0.4, 0.5, 0.6, 0.7), (0.02, 0.1, 0.3), (True, False)):
        records = made.clean_run(seed, speed_noise=noise, with_rate=with_rate, eval_every=15)
        records = made.changed(records, "samples_per_sec", _scaled(BEGINS, share))
        yield made.changed(records, "sec_per_step", _scaled(BEGINS, 1.0 / share)), BEGINS


def _waits_for_data(seed: int) -> Iterator[Fault]:
    dice = random.Random(seed)

    def waits(share: float, begins: int) -> Callable[[int], float]:
        return lambda step: 0.4 * (share if step >= begins else 0.05) * dice.lognormvariate(0.0, 0.2)

    for share, begins in itertools.product((0.35, 0.5, 0.7), (0, BEGINS)):
        yield made.added(made.clean_run(seed), "data_time_s", waits(share, begins)), begins


def _idles(seed: int) -> Iterator[Fault]:
    for share, begins in itertools.product((0.2, 0.35, 0.45), (1000, 3000)):
        yield made.changed(made.clean_run(seed, records=600), "gpu_util", _scaled(begins, share)), begins


def _is_cut_short(seed: int) -> Iterator[Fault]:
    for share, eval_every, noise in itertools.product((0.5, 0.8), (0, 25), (0.03, 0.3)):
        records = made.clean_run(seed, records=800, eval_every=eval_every, speed_noise=noise)
        # It is not sure before a tenth of the time has passed.
        limit = records[0]["time"] + share * records[-1]["elapsed"]
        yield [{**records[0], "job_end_time": limit}, *records[1:]], 0


FAULTS: dict[str, Callable[[int], Iterator[Fault]]] = {
    "vanishing_grad": _vanishes,
    "memory_growth": _leaks,
    "stalled": _stalls,
    "lr_problem": _learning_rate,
    "loss_scale": _overflows,
    "straggler": _lags,
    "throughput_drop": _slower,
    "data_starvation": _waits_for_data,
    "low_gpu_util": _idles,
    "time_limit": _is_cut_short,
}
"""How each kind is injected: several strengths, places and noise levels per seed."""
