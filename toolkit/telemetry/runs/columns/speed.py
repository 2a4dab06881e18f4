"""Compares the step times of two groups of jobs, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from toolkit.telemetry.runfolder.manifest import Session
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runfolder.untrusted import finite_in, mapping_in, mappings_in, whole_in
from toolkit.telemetry.runs.formatting import clean, duration
from toolkit.telemetry.runs.statistics import BLOCKS, noise_of_median, student_t
from toolkit.telemetry.runs.store import Floats
from toolkit.telemetry.timing.names import IN_DATA_WAIT, IN_TRAINING, LEDGER_PREFIX

SECONDS: Final = "sec_per_step"
SAMPLES: Final = "samples_per_sec"
_TRAINED: Final = LEDGER_PREFIX + IN_TRAINING
_WAITED: Final = LEDGER_PREFIX + IN_DATA_WAIT

METRICS: Final = (SECONDS, SAMPLES, _TRAINED, _WAITED)
"""The metrics this needs."""

_WARM_UP: Final = 0.05
_WARM_UP_RECORDS: Final = 10
"""The first records of a job include compilation and cold caches, and say nothing about the code."""

_MIN_RECORDS: Final = 20
"""Records after the warm-up that a job needs to be compared: fewer make no blocks to resample."""

_ROUNDING: Final = 1e-9
_SAME_BATCH: Final = 0.01
"""If samples per step differ by more, batch sizes differ, and times are compared per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpeed:
    """The step times of one session of a run."""

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
    """Records used, without the warm-up."""
    median: float
    """Seconds per step."""
    p10: float
    p90: float
    samples_per_sec: float | None
    samples_per_step: float | None
    data_wait: float | None
    """The fraction of the step time spent waiting for data."""
    noise: float | None
    """Standard error of the logarithm of the median; None with too few records."""

    @property
    def label(self) -> str:
        """A short label."""
        return f"{self.run_name} · session {self.session}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs that should be equally fast."""

    id: str
    name: str
    tagged: bool
    """Whether the group has a `perf_tag`; otherwise it is the sessions of one run."""
    jobs: tuple[JobSpeed, ...]

    @property
    def judged(self) -> tuple[JobSpeed, ...]:
        """The jobs that are long enough to compare."""
        return tuple(job for job in self.jobs if job.noise is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of one group's step time with another's."""

    name: str
    baseline: str
    ratio: float
    """Time relative to the baseline: above 1 is slower."""
    low: float
    high: float
    """The 95 % confidence interval of the ratio."""
    jobs: int
    baseline_jobs: int
    per: Literal["step", "sample"]

    @property
    def outcome(self) -> Literal["slower", "faster", "same"]:
        """The result; "same" if the interval includes no difference."""
        if self.low > 1.0 + _ROUNDING:
            return "slower"
        return "faster" if self.high < 1.0 - _ROUNDING else "same"

    @property
    def spread_known(self) -> bool:
        """Whether at least one group has two jobs, so that the variation between equal jobs is known."""
        return self.jobs + self.baseline_jobs > 2

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        jobs = f"{self.jobs} {'job' if self.jobs == 1 else 'jobs'} vs {self.baseline_jobs}"
        width = 100 * (self.high - self.low)
        digits = 0 if width >= 2 else 1 if width >= 0.2 else 2
        ends = [100 * (edge - 1.0) for edge in (self.low, self.high)]
        if self.outcome == "same":
            shown = [f"{abs(end):.{digits}f}" for end in ends]
            between = " and ".join(
                f"{text} % {'slower' if end >= 0 else 'faster'}"
                for text, end in zip(shown, ends, strict=True)
            )
            if not any(float(text) for text in shown):
                return f"No difference: {self.name} is as fast as {self.baseline} to within 0.01 % ({jobs})."
            return (
                f"No significant difference: {self.name} is between {between} "
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
) -> list[JobSpeed]:
    """Return the jobs of one run that have logged step times, oldest first.

    `starts` are records that describe the machine; `table` has the columns `METRICS`, `global_step` and `session`.
    """
    if SECONDS not in table or "session" not in table:
        return []
    by_session: dict[int, list[Record]] = {}
    for record in starts:
        by_session.setdefault(whole_in(record.get("session")) or 1, []).append(record)
    of_manifest = {session.session: session for session in sessions}
    usable = np.isfinite(table[SECONDS]) & (table[SECONDS] > 0)
    found = []
    for number in np.unique(table["session"][usable]).astype(int).tolist():
        rows = np.flatnonzero(usable & (table["session"] == number))
        columns = {name: column[rows] for name, column in table.items()}
        steps = table["global_step"][table["session"] == number]
        found.append(
            _job(run, run_name, number, of_manifest.get(number), by_session.get(number, ()), steps, columns)
        )
    return found


def groups_of(jobs: Iterable[JobSpeed]) -> list[JobGroup]:
    """Return the jobs by `perf_tag`, oldest group first; a run without a tag is its own group."""
    members: dict[str, list[JobSpeed]] = {}
    for job in jobs:
        members.setdefault(f"tag {job.perf_tag}" if job.perf_tag else f"run {job.run}", []).append(job)
    groups = [
        JobGroup(
            id=name,
            name=group[0].perf_tag or group[0].run_name,
            tagged=group[0].perf_tag is not None,
            jobs=tuple(sorted(group, key=lambda job: job.started)),
        )
        for name, group in members.items()
    ]
    return sorted(groups, key=lambda group: group.jobs[0].started)


def compare(group: JobGroup, baseline: JobGroup) -> Verdict | None:
    """Compare `group` with `baseline`; None if one of them has no job that is long enough.

    Each job counts once, by the logarithm of its median. The error is estimated from within the jobs and from the
    variation between jobs of a group, and the larger estimate is used.
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
    half = student_t(BLOCKS - 1) * math.sqrt(
        sum(sum((job.noise or 0.0) ** 2 for job in jobs) / len(jobs) ** 2 for jobs in judged)
    )
    # Student's t: resampling jobs, as is done with blocks, is overconfident with only a few jobs. With two against
    # two, that interval contained the truth in 66 of 100 trials, this one in 95.
    freedom = sum(len(level) - 1 for level in levels)
    if freedom:
        apart = sum(float(((level - level.mean()) ** 2).sum()) for level in levels) / freedom
        half = max(half, student_t(freedom) * math.sqrt(apart * sum(1 / len(level) for level in levels)))
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
    """Return a step time with three digits: two jobs may differ by little."""
    return f"{seconds:#.3g} s" if 0.9995 <= seconds < 99.95 else duration(seconds)


# ---------------------------------------------------------------- one job


def _job(
    run: str,
    run_name: str,
    number: int,
    session: Session | None,
    records: Sequence[Record],
    steps: Floats,
    columns: Mapping[str, Floats],
) -> JobSpeed:
    everything = columns[SECONDS]
    warm_up = max(_WARM_UP_RECORDS, math.ceil(_WARM_UP * len(everything)))
    # A job that ends within its warm-up is shown as it is, and not compared.
    first = warm_up if warm_up < len(everything) else 0
    seconds = everything[first:]
    p10, median, p90 = np.percentile(seconds, (10, 50, 90)).tolist()
    samples = _of(columns, SAMPLES, first)
    waited, trained = (float(np.nansum(_of(columns, name, first))) for name in (_WAITED, _TRAINED))
    batch = samples * seconds if len(samples) else samples
    begun = min((finite_in(record.get("time")) or 0.0 for record in records), default=0.0)
    return JobSpeed(
        run=run,
        run_name=run_name,
        session=number,
        perf_tag=clean((session.perf_tag if session else None) or _text(records, "perf_tag")).strip() or None,
        session_tag=clean((session.session_tag if session else None) or "").strip() or None,
        started=session.started if session else begun,
        host=clean(session.host) if session else "",
        device=_device(records),
        steps=int(np.nanmax(steps) - np.nanmin(steps)) + 1 if np.isfinite(steps).any() else 0,
        records=len(seconds),
        median=median,
        p10=p10,
        p90=p90,
        samples_per_sec=_median(samples),
        samples_per_step=_median(batch),
        data_wait=waited / (waited + trained) if trained > 0 else None,
        noise=noise_of_median(seconds) if first and len(seconds) >= _MIN_RECORDS else None,
    )


def _of(columns: Mapping[str, Floats], name: str, first: int) -> Floats:
    return columns[name][first:] if name in columns else np.empty(0)


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values) & (values > 0)]
    return float(np.median(known)) if len(known) else None


def _level(job: JobSpeed, per: Literal["step", "sample"]) -> float:
    share = job.samples_per_step if per == "sample" else None
    return math.log(job.median / (share or 1.0))


def _text(records: Sequence[Record], name: str) -> str:
    """Return the value of `name` in the records, as in the manifest."""
    value = next((record[name] for record in records if record.get(name)), "")
    return ",".join(str(one) for one in value) if isinstance(value, list) else str(value)


def _device(records: Sequence[Record]) -> str:
    for record in records:
        names = [_name(board) for board in mappings_in(record.get("accelerators"))]
        counts = {name: names.count(name) for name in names if name}
        if counts:
            return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
    return next((name for record in records if (name := _name(record.get("cpu"), "model"))), "")


def _name(described: Any, key: str = "name") -> str:
    name = mapping_in(described).get(key)
    return clean(name)[:60] if isinstance(name, str) else ""
