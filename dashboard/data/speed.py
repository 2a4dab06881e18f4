"""Which of two groups of jobs takes longer for a step, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import numpy as np

from dashboard.data.run_store import Floats
from dashboard.data.formatting import clean, duration
from toolkit.runfolder.manifest import Session
from toolkit.runfolder.records import Record
from toolkit.timing.names import IN_DATA_WAIT, IN_TRAINING, LEDGER_PREFIX

SECONDS: Final = "sec_per_step"
SAMPLES: Final = "samples_per_sec"
_TRAINED: Final = LEDGER_PREFIX + IN_TRAINING
_WAITED: Final = LEDGER_PREFIX + IN_DATA_WAIT

METRICS: Final = (SECONDS, SAMPLES, _TRAINED, _WAITED)
"""What has to be read of a run."""

_WARM_UP: Final = 0.05
_WARM_UP_RECORDS: Final = 10
"""The first records of a job pay for compilation, caches and a cold clock, and say nothing of the code."""

_FEWEST: Final = 20
"""Records behind the warm-up from which on a job is judged: fewer make no blocks to draw from."""

_BLOCKS: Final = 20
"""Step times drift, so neighbours are no separate evidence: whole blocks are drawn, each a twentieth of the job."""

_DRAWS: Final = 300
_BINS: Final = 256
_MOST_ALIKE: Final = 0.9

_ROUNDING: Final = 1e-9
_SAME_BATCH: Final = 0.01
"""Samples a step that differ by more are another batch size: then a step is no measure, and a sample is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One session of a run: how long its steps took."""

    run: str
    run_name: str
    session: int
    perf_tag: str | None
    session_tag: str | None
    started: float
    host: str
    device: str
    steps: int
    records: int
    """Records that the figures are from, those of the warm-up left out."""
    median: float
    """Seconds a step."""
    p10: float
    p90: float
    samples_per_sec: float | None
    samples_per_step: float | None
    data_wait: float | None
    """The part of the step time that went into waiting for data, 0 to 1."""
    noise: float | None
    """Standard error of the logarithm of the median; None where there are too few records to tell."""

    @property
    def label(self) -> str:
        """The job in a few words."""
        return f"{self.run_name} · session {self.session}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs whose speed should be the same."""

    id: str
    name: str
    tagged: bool
    """Whether a `perf_tag` makes the group; otherwise it is the sessions of one run that has none."""
    jobs: tuple[Job, ...]

    @property
    def judged(self) -> tuple[Job, ...]:
        """The jobs that are long enough."""
        return tuple(job for job in self.jobs if job.noise is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the time a step takes in one group compares with that in another."""

    name: str
    baseline: str
    ratio: float
    """Time of the one over that of the baseline: above 1 it is slower."""
    low: float
    high: float
    """Between these the ratio lies with 95 % confidence."""
    jobs: int
    baseline_jobs: int
    per: Literal["step", "sample"]

    @property
    def outcome(self) -> Literal["slower", "faster", "same"]:
        """What can be told; "same" where the interval has room for no difference at all."""
        if self.low > 1.0 + _ROUNDING:
            return "slower"
        return "faster" if self.high < 1.0 - _ROUNDING else "same"

    @property
    def spread_known(self) -> bool:
        """Whether at least one group has two jobs, so that it is known how far equal jobs are apart."""
        return self.jobs + self.baseline_jobs > 2

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        jobs = f"{self.jobs} {'job' if self.jobs == 1 else 'jobs'} against {self.baseline_jobs}"
        width = 100 * (self.high - self.low)
        digits = 0 if width >= 2 else 1 if width >= 0.2 else 2
        ends = [100 * (edge - 1.0) for edge in (self.low, self.high)]
        if self.outcome == "same":
            between = " and ".join(
                f"{abs(end):.{digits}f} % {'slower' if end >= 0 else 'faster'}" for end in ends
            )
            return (
                f"No difference that can be told from the noise: {self.name} is between {between} "
                f"than {self.baseline} (95 % interval, {jobs})."
            )
        near, far = sorted(abs(end) for end in ends)
        return (
            f"{self.name} is {100 * abs(self.ratio - 1.0):.{digits}f} % {self.outcome} than {self.baseline} "
            f"(95 % interval {near:.{digits}f} to {far:.{digits}f} %, {jobs})."
        )


def jobs_of(
    run: str,
    run_name: str,
    sessions: Sequence[Session],
    starts: Iterable[Record],
    table: Mapping[str, Floats],
) -> list[Job]:
    """Return the jobs of one run that have logged step times, first one first.

    `starts` are records that tell of the machine; `table` has the columns `METRICS`, `global_step` and `session`.
    """
    if SECONDS not in table or "session" not in table:
        return []
    told: dict[int, list[Record]] = {}
    for record in starts:
        told.setdefault(_whole(record.get("session"), 1), []).append(record)
    of_manifest = {session.session: session for session in sessions}
    usable = np.isfinite(table[SECONDS]) & (table[SECONDS] > 0)
    found = []
    for number in np.unique(table["session"][usable]).astype(int).tolist():
        rows = np.flatnonzero(usable & (table["session"] == number))
        columns = {name: column[rows] for name, column in table.items()}
        steps = table["global_step"][table["session"] == number]
        found.append(
            _job(run, run_name, number, of_manifest.get(number), told.get(number, ()), steps, columns)
        )
    return found


def groups_of(jobs: Iterable[Job]) -> list[Group]:
    """Return the jobs by `perf_tag`, the tag whose first job is oldest first; a run without one is its own group."""
    members: dict[str, list[Job]] = {}
    for job in jobs:
        members.setdefault(f"tag {job.perf_tag}" if job.perf_tag else f"run {job.run}", []).append(job)
    groups = [
        Group(
            id=name,
            name=group[0].perf_tag or group[0].run_name,
            tagged=group[0].perf_tag is not None,
            jobs=tuple(sorted(group, key=lambda job: job.started)),
        )
        for name, group in members.items()
    ]
    return sorted(groups, key=lambda group: group.jobs[0].started)


def compare(group: Group, baseline: Group) -> Verdict | None:
    """Return how `group` compares with `baseline`; None where one of them has no job that is long enough.

    Each job counts once, by the logarithm of its median. How far that may be off is found twice, and the wider of
    both holds: from within the jobs, and from how far jobs of one group are apart, over both groups together.
    """
    judged = (group.judged, baseline.judged)
    if not judged[0] or not judged[1]:
        return None
    batches = [job.samples_per_step for jobs in judged for job in jobs]
    known = [batch for batch in batches if batch is not None]
    per: Literal["step", "sample"] = "step"
    if len(known) == len(batches) and max(known) > (1.0 + _SAME_BATCH) * min(known):
        per = "sample"
    levels = [np.array([_level(job, per) for job in jobs]) for jobs in judged]
    difference = float(levels[0].mean() - levels[1].mean())
    half = _student_t(_BLOCKS - 1) * math.sqrt(
        sum(sum((job.noise or 0.0) ** 2 for job in jobs) / len(jobs) ** 2 for jobs in judged)
    )
    # By Student's t: to draw jobs at random, as is done with blocks, promises too much where there are only a few. Of
    # two against two, such an interval held the truth in 66 of 100 trials, this one in 95.
    freedom = sum(len(level) - 1 for level in levels)
    if freedom:
        apart = sum(float(((level - level.mean()) ** 2).sum()) for level in levels) / freedom
        half = max(half, _student_t(freedom) * math.sqrt(apart * sum(1 / len(level) for level in levels)))
    return Verdict(
        name=group.name,
        baseline=baseline.name,
        ratio=math.exp(difference),
        low=math.exp(difference - half),
        high=math.exp(difference + half),
        jobs=len(judged[0]),
        baseline_jobs=len(judged[1]),
        per=per,
    )


def step_time(seconds: float) -> str:
    """Return the time of a step with three digits: two jobs may differ by little."""
    return f"{seconds:#.3g} s" if 0.9995 <= seconds < 99.95 else duration(seconds)


def noise_of_median(values: Floats) -> float:
    """Return the standard error of the logarithm of the median of positive `values`, which may depend on neighbours.

    Whole blocks are drawn again and again. Where even blocks resemble the ones before, the error is widened for it.
    """
    blocks = min(_BLOCKS, len(values) // 2)
    block = np.arange(len(values)) * blocks // len(values)
    # Medians of what was drawn, from counts: of a million records, values themselves would take seconds to sort.
    edges = np.quantile(values, np.linspace(0.0, 1.0, _BINS + 1))
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, _BINS - 1)
    counts = np.bincount(block * _BINS + bins, minlength=blocks * _BINS).reshape(blocks, _BINS)
    sums = np.cumsum(_drawn(blocks) @ counts, axis=1)
    half = sums[:, -1] / 2.0
    place = (sums < half[:, None]).sum(axis=1)
    row = np.arange(len(sums))
    before = np.where(place > 0, sums[row, place - 1], 0.0)
    inside = (half - before) / np.maximum(sums[row, place] - before, 1.0)
    medians = edges[place] + inside * (edges[place + 1] - edges[place])
    error = float(np.log(medians).std(ddof=1)) * math.sqrt(blocks / (blocks - 1))
    parts = np.split(values, np.searchsorted(block, np.arange(1, blocks)))
    alike = _likeness(np.array([np.median(part) for part in parts]))
    return error * math.sqrt((1.0 + alike) / (1.0 - alike))


# ---------------------------------------------------------------- one job


def _job(
    run: str,
    run_name: str,
    number: int,
    session: Session | None,
    told: Sequence[Record],
    steps: Floats,
    columns: Mapping[str, Floats],
) -> Job:
    everything = columns[SECONDS]
    warm_up = max(_WARM_UP_RECORDS, math.ceil(_WARM_UP * len(everything)))
    # A job that ends within its warm-up is shown by what there is, and not judged.
    first = warm_up if warm_up < len(everything) else 0
    seconds = everything[first:]
    p10, median, p90 = np.percentile(seconds, (10, 50, 90)).tolist()
    samples = _of(columns, SAMPLES, first)
    waited, trained = (float(np.nansum(_of(columns, name, first))) for name in (_WAITED, _TRAINED))
    batch = samples * seconds if len(samples) else samples
    return Job(
        run=run,
        run_name=run_name,
        session=number,
        perf_tag=clean((session.perf_tag if session else None) or _text(told, "perf_tag")).strip() or None,
        session_tag=clean((session.session_tag if session else None) or "").strip() or None,
        started=session.started if session else min((_time(record) for record in told), default=0.0),
        host=clean(session.host) if session else "",
        device=_device(told),
        steps=int(np.nanmax(steps) - np.nanmin(steps)) + 1 if np.isfinite(steps).any() else 0,
        records=len(seconds),
        median=median,
        p10=p10,
        p90=p90,
        samples_per_sec=_median(samples),
        samples_per_step=_median(batch),
        data_wait=waited / (waited + trained) if trained > 0 else None,
        noise=noise_of_median(seconds) if first and len(seconds) >= _FEWEST else None,
    )


def _of(columns: Mapping[str, Floats], name: str, first: int) -> Floats:
    return columns[name][first:] if name in columns else np.empty(0)


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.median(known)) if len(known) else None


def _level(job: Job, per: Literal["step", "sample"]) -> float:
    share = job.samples_per_step if per == "sample" else None
    return math.log(job.median / (share or 1.0))


def _text(told: Sequence[Record], name: str) -> str:
    """Return what the records say under `name`, as the manifest would have it."""
    value = next((record[name] for record in told if record.get(name)), "")
    return ",".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _device(told: Sequence[Record]) -> str:
    for record in told:
        boards = record.get("accelerators")
        names = [_name(board) for board in boards] if isinstance(boards, list) else []
        counts = {name: names.count(name) for name in names if name}
        if counts:
            return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
    return next((name for record in told if (name := _name(record.get("cpu"), "model"))), "")


def _name(described: Any, key: str = "name") -> str:
    name = described.get(key) if isinstance(described, dict) else None
    return clean(name)[:60] if isinstance(name, str) else ""


def _time(record: Record) -> float:
    value = record.get("time")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


# ---------------------------------------------------------------- chance


@cache
def _drawn(blocks: int) -> Floats:
    """Return how often each block comes up in each draw; the same ones always, so that a page says the same twice."""
    return (
        np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1.0 / blocks), _DRAWS).astype(np.float64)
    )


def _likeness(levels: Floats) -> float:
    """Return how much each block resembles the one before, 0 to 1: the autocorrelation, less what so few hide of it."""
    apart = levels - levels.mean()
    total = float((apart**2).sum())
    if total == 0.0:
        return 0.0
    seen = float((apart[1:] * apart[:-1]).sum()) / total
    return min(_MOST_ALIKE, max(0.0, seen + (1.0 + 3.0 * max(0.0, seen)) / len(levels)))


_OF_FEW: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def _student_t(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval."""
    # Beyond the table its expansion in 1 / freedom is right to three digits.
    return _OF_FEW.get(freedom) or 1.960 + 2.372 / freedom + 2.822 / freedom**2
