"""The RunStore protocol, through which pages access runs, and its data types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dashboard.data.completions import Completions
from dashboard.data.spans import SpanTable
from toolkit.diagnostics.finding import Finding
from toolkit.runfolder.labels import Labels
from toolkit.runfolder.manifest import Manifest, Session
from toolkit.runfolder.reader import BadLine
from toolkit.runfolder.records import Record
from toolkit.runfolder.status import Status
from toolkit.runfolder.step_count import steps_done
from toolkit.timing.ledger import Ledger

Floats = npt.NDArray[np.float64]
XAxis = Literal["step", "time", "elapsed", "epoch"]
"""The x axis of a chart: step, wall time, seconds since the start, or epoch."""

STARTING = "starting"
UNREADABLE = "unreadable"


class UnknownRun(LookupError):  # noqa: N818 - the name says what happened
    """No run has this key; `near` has the most similar keys."""

    def __init__(self, key: str, near: Sequence[str]) -> None:
        super().__init__(f"there is no run {key!r}")
        self.key = key
        self.near = tuple(near)


class Refused(ValueError):  # noqa: N818 - the name says what happened
    """The store refuses a request; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """One run in a list: from its manifest and labels, or without a manifest from its first and last records."""

    key: str
    """Its key in the URL: the folder's name, prefixed with the number of its log directory from the second on."""
    folder: Path
    name: str
    """The name in its labels, else the manifest's display name, else the folder."""
    status: Status
    tags: tuple[str, ...] = ()
    archived: bool = False
    project: str | None = None
    created: float | None = None
    last_sign: float | None = None
    """Wall time of the last heartbeat or record."""
    duration_s: float | None = None
    """Total time of all sessions, without the gaps between them."""
    step: int | None = None
    max_steps: int | None = None
    from_zero: bool = False
    """Whether its first step is 0."""
    epoch: float | None = None
    loss: float | None = None
    lr: float | None = None
    samples_per_sec: float | None = None
    host: str = ""
    sessions: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    """Why the folder or a part of it could not be read."""

    @property
    def progress(self) -> float | None:
        """The fraction of steps done, if the total is known."""
        if not self.max_steps or self.steps_done is None:
            return None
        return min(1.0, max(0.0, self.steps_done / self.max_steps))

    @property
    def steps_done(self) -> int | None:
        """The number of steps done; None before the first."""
        return None if self.step is None else steps_done(self.step, from_zero=self.from_zero)

    @property
    def open_findings(self) -> tuple[int, int]:
        """The number of open critical findings and warnings at the last heartbeat."""
        counts = [self.summary.get(f"findings_{severity}", 0) for severity in ("critical", "warning")]
        critical, warning = (value if type(value) is int else 0 for value in counts)
        return critical, warning

    @property
    def live(self) -> bool:
        """Whether the run may be able to answer requests."""
        return self.status.name in ("running", "stalled", STARTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """All runs, the last updated first."""

    cards: tuple[RunCard, ...]
    roots: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Descriptions of folders that could not be listed or were skipped."""
    truncated_roots: tuple[Path, ...] = ()
    """Roots with more runs than listed; the others can still be opened by key."""
    read_ms: float = 0.0

    def find(self, key: str) -> RunCard | None:
        """Return the run with this key."""
        return next((card for card in self.cards if card.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of reading a log: how much was read, bad lines, lost records."""

    records: int = 0
    bytes_read: int = 0
    bytes_pending: int = 0
    bad_count: int = 0
    bad_lines: tuple[BadLine, ...] = ()
    replaced_at: float | None = None
    """When the log was found to be truncated or replaced, and read again from its start."""
    lost_records: int = 0
    """Records that the run reported as lost."""
    lost_reasons: tuple[str, ...] = ()
    read_ms: float = 0.0
    from_cache: bool = False
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether everything on disk has been read."""
        return self.bytes_pending == 0

    @property
    def fraction_read(self) -> float:
        """The fraction of the file that has been read."""
        whole = self.bytes_read + self.bytes_pending
        return self.bytes_read / whole if whole else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta:
    """Everything about one run except its curves."""

    card: RunCard
    manifest: Manifest | None
    labels: Labels
    start: Record
    """The newest start record, with the configuration."""
    environment: Mapping[str, Any]
    writable: bool
    """Whether labels and requests can be written into the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One metric of a run and its latest value."""

    name: str
    event: str
    """The kind of record it is in: step, system, eval or epoch."""
    count: int
    last: float
    last_step: float | None
    low: float
    high: float
    non_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteRun:
    """Consecutive points that are all NaN, or all the same infinity."""

    kind: Literal["NaN", "Infinity", "-Infinity"]
    first_x: float
    last_x: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSegment:
    """The part of a curve from one session."""

    x: Floats
    y: Floats
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over one window, downsampled without hiding extremes."""

    metric: str
    axis: XAxis
    segments: tuple[CurveSegment, ...]
    """The current curve, one segment per session."""
    superseded: tuple[CurveSegment, ...] = ()
    """Points of earlier sessions after the step from which a later one resumed."""
    smooth: tuple[CurveSegment, ...] = ()
    non_finite: tuple[NonFiniteRun, ...] = ()
    drawn: int = 0
    total: int = 0
    """Points inside the window; `drawn` of them are in the segments."""
    low: float | None = None
    high: float | None = None
    percentiles: tuple[float, float] | None = None
    """The 1st and 99th percentile, for "Clip outliers"."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return self.total == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """Where one session of a run starts."""

    session: int
    first_step: float
    first_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashed:
    """A deleted run that can be restored."""

    token: str
    name: str
    deleted: float
    bytes_held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Where a run's time went, in the records processed so far."""

    ledger: Ledger
    fraction: float
    """The fraction of records processed."""


class RunStore(Protocol):
    """Access to runs. Thread-safe."""

    def list_runs(self) -> RunList:
        """Return all runs, from manifests and labels only."""

    def card(self, key: str) -> RunCard:
        """Return one run's card. Raises UnknownRun if there is no such run."""

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        """Return a few losses sampled along each run's log; runs that would take too long are left out."""

    def meta(self, key: str) -> RunMeta:
        """Return everything about a run except its curves. Raises UnknownRun if there is no such run."""

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        """Read new records, for at most about `wait_s`; the rest continues in the background."""

    def metrics(self, key: str, *, rank: int = 0) -> Sequence[MetricInfo]:
        """Return the metrics read so far, in the order in which they first appeared."""

    def series(
        self,
        key: str,
        metric: str,
        *,
        axis: XAxis = "step",
        window: tuple[float, float] | None = None,
        buckets: int = 600,
        smoothing: float = 0.0,
        rank: int = 0,
    ) -> Series:
        """Return one metric, downsampled to first, minimum, maximum and last of each bucket and all non-finite points.

        `smoothing` is the weight of a debiased exponential moving average over all points, 0 for none.
        """

    def sessions(self, key: str) -> Sequence[SessionStart]:
        """Return where each session that has logged a step starts, oldest first."""

    def manifest_sessions(self, key: str) -> Sequence[Session]:
        """Return the sessions in the run's manifest, oldest first; `session_tag` is None unless it was set."""

    def recent(self, key: str, metric: str, count: int) -> Floats:
        """Return the last values of a metric, at most `count` of them."""

    def values_around(self, key: str, metric: str, moment: float, count: int) -> tuple[Floats, Floats]:
        """Return a metric's values before and after a wall time, at most `count` of each, oldest first."""

    def means(self, key: str, metric: str, buckets: int) -> Floats:
        """Return the means of about `buckets` equal parts of a metric's finite values, for a sparkline."""

    def table(self, key: str, metrics: Sequence[str] | None = None) -> Mapping[str, Floats]:
        """Return metrics of the step records as columns of one length, with `global_step`, `time` and `session`."""

    def present(self, key: str, metrics: Sequence[str]) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Return which rows of `table` have each metric: a logged NaN is not an empty cell."""

    def events(self, key: str, kinds: Iterable[str] | None = None, *, limit: int = 200) -> Sequence[Record]:
        """Return the newest records that are not steps or system samples, newest first."""

    def spans(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> SpanTable:
        """Return the spans read so far, after reading new ones for at most about `wait_s`."""

    def span_records(
        self, key: str, places: Sequence[tuple[int, int]], *, rank: int = 0
    ) -> Sequence[Record | None]:
        """Return the full records of spans, by offset and length."""

    def completions(self, key: str) -> Completions:
        """Return the run's completions, which are read on demand, newest first."""

    def trace(self, key: str) -> Iterator[bytes]:
        """Yield the run's spans, of all sessions and ranks, as a Chrome trace.

        Raises:
            Refused: the records cannot be read.
        """

    def examine(self, key: str, *, wait_s: float = 0.3) -> float:
        """Run the detectors on new records, for at most about `wait_s`.

        Returns the fraction of records examined; the next call continues.
        """

    def findings(self, key: str) -> Sequence[Finding]:
        """Return what the detectors found in the records examined so far, in the order noticed.

        Findings of the run itself are in its `finding` records, under the same ids.
        """

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        """Update the time ledger with new records, for at most about `wait_s`; the next call continues."""

    def count_events(self, key: str) -> Mapping[str, int]:
        """Return the number of records read of each kind."""

    def ranks(self, key: str) -> Sequence[int]:
        """Return the ranks with their own records, including 0."""

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        """Return a file inside the run's folder that a record points to.

        Raises:
            Refused: it is outside the folder, a link, not a regular file, or too large.
        """

    def log_path(self, key: str) -> Path:
        """Return where the run's records are, for a download."""

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        """Send a request to the run and return its id; the answer is a control_change record.

        Raises:
            Refused: the run cannot be controlled, or the request is invalid.
        """

    def label(self, key: str, labels: Labels) -> None:
        """Save a run's name, tags, notes and whether it is archived. Raises Refused if they cannot be written."""

    def delete(self, key: str) -> str:
        """Move a run to the trash and return the token that restores it.

        Raises:
            Refused: the run is live, or cannot be moved.
        """

    def trash(self) -> Sequence[Trashed]:
        """Return the deleted runs, newest first."""

    def restore(self, token: str) -> str:
        """Restore a run and return its key. Raises Refused if it is gone, or cannot be moved."""

    def empty_trash(self) -> int:
        """Permanently delete the runs in the trash and return how many there were."""
