"""Made runs: records as the logger writes them, of trainings in which nothing is wrong, and ways to break them."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.lengths import longer
from toolkit.telemetry.diagnostics.examiner import Examiner, examine
from toolkit.telemetry.diagnostics.finding import Finding

Record = dict[str, Any]

BEGAN = 1_700_000_000.0
SYSTEM_EVERY_S = 5.0

SCHEDULES = ("constant", "cosine", "linear", "restarts", "steps")
"""Learning rates that are all as they should be; each but the first begins with a warm-up."""


def clean_run(
    seed: int = 0,
    *,
    records: int = 400,
    noise: float = 0.1,
    schedule: str = "cosine",
    log_every: int = 10,
    sec_per_step: float = 0.4,
    speed_noise: float = 0.03,
    eval_every: int = 0,
    eval_s: float = 40.0,
    checkpoint_every: int = 0,
    sessions: int = 1,
    then_log_every: int | None = None,
    gpu_util: float = 92.0,
    with_system: bool = True,
    with_rate: bool = True,
    total_mib: float = 64_000.0,
) -> list[Record]:
    """Return the records of a run that learns as it should.

    `noise` is that of the loss, as a share of it, and `speed_noise` that of the step time. An evaluation or checkpoint
    comes each so many step records, and takes its time between two steps. `then_log_every` is in force from the middle
    on; each of several `sessions` resumes from a checkpoint a few steps back.
    """
    return list(_Maker(seed, locals()).run())


def clean_runs(every: int = 1) -> Iterator[tuple[str, list[Record]]]:
    """Make 240 runs in which nothing is wrong, each with words that say what it is like."""
    noises = (0.02, 0.1, 0.3, 0.8)
    kinds: list[dict[str, Any]] = [
        {},
        {"eval_every": 10, "checkpoint_every": 50},
        {"eval_every": 37, "eval_s": 200.0, "speed_noise": 0.3},
        {"sessions": 3, "checkpoint_every": 40},
        {"then_log_every": 100, "eval_every": 20, "records": 250},
        {"log_every": 1, "speed_noise": 0.5, "records": 900},
        {"with_rate": False, "speed_noise": 0.15, "gpu_util": 60.0},
        {"log_every": 50, "sec_per_step": 3.0, "eval_every": 8, "eval_s": 250.0},
        {"records": 60},
        {"records": 2500, "log_every": 5, "eval_every": 100},
        {"with_system": False, "checkpoint_every": 25},
        {"sec_per_step": 30.0, "log_every": 1, "records": 150, "speed_noise": 0.2},
    ]
    ways = enumerate(itertools.product(noises, SCHEDULES, kinds))
    for number, (noise, schedule, about) in itertools.islice(ways, 0, None, every):
        name = f"{number}: noise {noise}, {schedule}, {about}"
        yield name, clean_run(1000 + number, noise=noise, schedule=schedule, **about)


SILENT_IN_ANY_NOISE = (
    *("vanishing_grad", "throughput_drop", "data_starvation", "low_gpu_util", "memory_growth"),
    *("stalled", "lr_problem", "loss_scale", "straggler"),
)
"""What a noisy loss says nothing about."""


@functools.cache
def findings_of_clean_runs() -> list[tuple[float, str, Sequence[Finding]]]:
    """Examine clean runs, once for all tests; return the noise of each, its words, and what was found."""
    # Every 23rd, which is each kind and each schedule; all of them in a long run.
    chosen = clean_runs(every=longer(23, 1))
    return [(float(name.split()[2].rstrip(",")), name, examine(records)) for name, records in chosen]


def changed(
    records: Iterable[Record], name: str, change: Callable[[int, Any], Any], *, event: str | None = None
) -> list[Record]:
    """Return `records` with `change(step, value)` in place of each value of that name; None leaves it out."""
    result = []
    for record in records:
        if name in record and (event is None or record["event"] == event):
            value = change(record["global_step"], record[name])
            record = {**record, name: value}
            if value is None:
                del record[name]
        result.append(record)
    return result


def added(records: Iterable[Record], name: str, value: Callable[[int], Any]) -> list[Record]:
    """Return `records` with `value(step)` under a new name on each step record."""
    return [
        {**record, name: value(record["global_step"])} if record["event"] == "step" else record
        for record in records
    ]


def paused(
    records: Iterable[Record], after_step: int, seconds: float, *, heartbeats: bool = True
) -> list[Record]:
    """Return `records` with a pause behind the step record of `after_step`, which nothing but the system's explain."""
    result: list[Record] = []
    late = 0.0
    for record in records:
        result.append({**record, "time": record["time"] + late, "elapsed": record["elapsed"] + late})
        if record["event"] == "step" and record["global_step"] == after_step and not late:
            late = seconds
            beats = int(seconds // SYSTEM_EVERY_S) if heartbeats else 0
            for beat in range(1, beats + 1):
                result.append(
                    {
                        "event": "system",
                        "time": record["time"] + beat * SYSTEM_EVERY_S,
                        "elapsed": record["elapsed"] + beat * SYSTEM_EVERY_S,
                        "session": record["session"],
                        "global_step": after_step,
                    }
                )
    return result


def steps_of(records: Iterable[Record]) -> list[int]:
    """Return the steps of the step records."""
    return [record["global_step"] for record in records if record["event"] == "step"]


def detect(records: Iterable[Record], *kinds: str) -> list[Finding]:
    """Return the findings of these kinds about a whole run."""
    return [finding for finding in examine(records) if finding.kind in kinds]


def detect_in_chunks(records: list[Record], size: int, *kinds: str) -> list[Finding]:
    """Return the findings of these kinds about a run whose records come a few at a time."""
    examiner = Examiner()
    for first in range(0, len(records), size):
        examiner.take(records[first : first + size])
    return [finding for finding in examiner.findings() if finding.kind in kinds]


def curve(
    seed: int = 0, *, records: int = 300, noise: float = 0.05, first: float = 3.0, last: float = 0.5
) -> list[float]:
    """Return losses that fall from `first` towards `last`, as in a training; if both are equal the loss is flat."""
    dice = random.Random(seed)
    levels = (last + (first - last) * math.exp(-4.0 * place / records) for place in range(records))
    return [level * math.exp(dice.gauss(0.0, noise)) for level in levels]


def run_of(losses: Iterable[Any], *, every: int = 1, **others: Iterable[Any]) -> list[Record]:
    """Return bare step records with these training losses, and with `others` added to them; None leaves one out."""
    rows = zip(losses, *others.values(), strict=True)
    return [
        {
            "event": "step",
            "global_step": every * number,
            **{
                name: value
                for name, value in zip(("train_loss", *others), row, strict=True)
                if value is not None
            },
        }
        for number, row in enumerate(rows, 1)
    ]


def evaluated(records: Iterable[Record], vals: Iterable[float], *, each: int) -> list[Record]:
    """Return `records` with an evaluation after every `each` step records, for as long as there are `vals`."""
    result: list[Record] = []
    left = iter(vals)
    steps = 0
    for record in records:
        result.append(record)
        steps += record["event"] == "step"
        if record["event"] == "step" and steps % each == 0 and (val := next(left, None)) is not None:
            result.append({"event": "eval", "global_step": record["global_step"], "val_loss": val})
    return result


def detect_one_by_one(records: Iterable[Record]) -> tuple[Examiner, dict[str, Finding]]:
    """Return an examiner that took the records one by one, and its last word on each incident."""
    examiner = Examiner()
    last_words: dict[str, Finding] = {}
    for record in records:
        last_words |= {finding.id: finding for finding in examiner.take([record])}
    return examiner, last_words


PARTS = {"optimizer_update": 0.05, "data_loading": 0.05, "rest": 0.05, "forward": 0.3, "backward": 0.55}
"""What a step consists of, as shares of it, in the order in which they come."""


def wait_for_each_other(takes: Sequence[dict[str, float]], wait_in: str = "backward") -> None:
    """Add to the parts of each rank's step the time in which it waits for the others, in `wait_in`.

    Gradients are exchanged at the end of a part; weights that are sharded are fetched before the forward pass.
    """
    before = list(itertools.takewhile(lambda part: part != wait_in, takes[0]))
    if wait_in != "forward":
        before.append(wait_in)
    arrive = [sum(mine[part] for part in before) for mine in takes]
    for at, mine in zip(arrive, takes, strict=True):
        mine[wait_in] += max(arrive) - at


class _Maker:
    """The clock, the counters and the dice of one made run."""

    def __init__(self, seed: int, about: dict[str, Any]) -> None:
        self.about = about
        self.random = random.Random(seed)
        self.step = 0
        self.elapsed = 0.0
        self.began = BEGAN
        self.session = 1
        self.log_every = about["log_every"]
        self.next_system = SYSTEM_EVERY_S
        later = about["then_log_every"] or self.log_every
        half = about["records"] // 2
        self.last_step = half * self.log_every + (about["records"] - half) * later

    def run(self) -> Iterator[Record]:
        about = self.about
        yield self.start()
        for number in range(1, about["records"] + 1):
            if about["then_log_every"] and number == about["records"] // 2:
                self.log_every = about["then_log_every"]
                yield self.record("control_change", applied={"log_every": self.log_every})
            if number > 1 and about["sessions"] > 1 and number % (about["records"] // about["sessions"]) == 0:
                yield self.record("end", status="stopped")
                self.session += 1
                self.began += self.elapsed + 4000.0
                self.elapsed, self.next_system = 0.0, SYSTEM_EVERY_S
                self.step = max(0, self.step - 3 * self.log_every)
                yield self.start()
            yield from self.steps(number)
            if about["eval_every"] and number % about["eval_every"] == 0:
                yield from self.wait(about["eval_s"] * self.random.uniform(0.9, 1.1))
                yield self.record("eval", val_loss=1.1 * self.loss())
            if about["checkpoint_every"] and number % about["checkpoint_every"] == 0:
                yield from self.wait(8.0)
                yield self.record("checkpoint", checkpoint_path="x")
        yield from self.wait(20.0)
        yield self.record("end", status="finished")

    def start(self) -> Record:
        return self.record("start", max_steps=self.last_step, run_name="made")

    def steps(self, number: int) -> Iterator[Record]:
        """The steps up to the next step record, and that record."""
        about, dice = self.about, self.random
        before = self.elapsed
        seconds = self.log_every * about["sec_per_step"] * math.exp(dice.gauss(0.0, about["speed_noise"]))
        if number == 1:
            seconds += 30.0
        elif dice.random() < 0.01:
            # A slow file, a garbage collection: now and then a step takes five times as long.
            seconds *= 5.0
        first = self.step
        end = before + seconds
        while self.next_system < end:
            self.step = first + int(self.log_every * (self.next_system - before) / seconds)
            yield from self.wait(self.next_system - self.elapsed)
        self.step, self.elapsed = first + self.log_every, end
        fields: Record = {"train_loss": self.loss(), "lr": self.lr(), "grad_norm": self.grad_norm()}
        fields |= {"epoch": self.step / 5000.0, "sec_per_step": seconds / self.log_every}
        if about["with_rate"]:
            fields["samples_per_sec"] = 16.0 * self.log_every / seconds
        yield self.record("step", **fields)

    def wait(self, seconds: float) -> Iterator[Record]:
        """Time in which no step is done: only the system's records come."""
        end = self.elapsed + seconds
        while self.next_system <= end:
            self.elapsed = max(self.elapsed, self.next_system)
            self.next_system += SYSTEM_EVERY_S
            if self.about["with_system"]:
                yield self.record("system", **self.system())
        self.elapsed = max(self.elapsed, end)

    def record(self, event: str, **fields: Any) -> Record:
        elapsed = round(self.elapsed, 3)
        return {
            "event": event,
            "time": self.began + elapsed,
            "elapsed": elapsed,
            "session": self.session,
            "global_step": self.step,
            **fields,
        }

    def system(self) -> Record:
        dice, about = self.random, self.about
        # The process loads its data and fills its caches for a while, then breathes.
        filled = 1.0 - math.exp(-self.elapsed / 150.0)
        rss = 3000.0 + 3000.0 * filled + dice.gauss(0.0, 30.0)
        util = about["gpu_util"] + dice.gauss(0.0, 6.0) if dice.random() > 0.05 else dice.uniform(0.0, 100.0)
        return {
            "gpu_util": min(100.0, max(0.0, util)),
            "cpu_mem_rss_mb": rss,
            # Sampled anywhere within a step: what it holds for the backward pass comes and goes.
            "gpu_mem_allocated": 8.0 + 6.0 * dice.random(),
            "gpu/0/mem_total_gb": 80.0,
            "ram_used_mb": rss + 4000.0,
            "ram_percent": 100.0 * (rss + 4000.0) / about["total_mib"],
        }

    def loss(self) -> float:
        level = 0.4 + 2.5 * math.exp(-3.0 * self.step / self.last_step)
        return level * math.exp(self.random.gauss(0.0, self.about["noise"]))

    def grad_norm(self) -> float:
        level = 0.3 + 5.0 * math.exp(-20.0 * self.step / self.last_step)
        return level * math.exp(self.random.gauss(0.0, 0.3))

    def lr(self) -> float:
        schedule, peak = self.about["schedule"], 3e-4
        done = min(1.0, self.step / self.last_step)
        if schedule == "constant":
            return peak
        warm_up = 0.1
        if done < warm_up:
            return peak * done / warm_up
        rest = (done - warm_up) / (1.0 - warm_up)
        if schedule == "linear":
            return peak * (1.0 - rest)
        if schedule == "steps":
            return peak * 0.1 ** int(3.0 * rest)
        if schedule == "restarts":
            rest = (3.0 * rest) % 1.0
        return peak * 0.5 * (1.0 + math.cos(math.pi * rest))
