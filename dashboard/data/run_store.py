"""The RunStore protocol: the only thing pages know about where runs live."""

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
"""What a chart runs along: the step, the wall clock, seconds since the run began, or the epoch."""

STARTING = "starting"
UNREADABLE = "unreadable"


class UnknownRun(LookupError):  # noqa: N818 - the name says what happened
    """No run has this key; `near` holds the keys that look most like it."""

    def __init__(self, key: str, near: Sequence[str]) -> None:
        super().__init__(f"there is no run {key!r}")
        self.key = key
        self.near = tuple(near)


class Refused(ValueError):  # noqa: N818 - the name says what happened
    """Something the store will not do, with a reason a person can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """One run as a list shows it: from its manifest and labels, or without a manifest from both ends of its log."""

    key: str
    """What stands in the URL: the folder's name, with the number of its log directory in front from the second on."""
    folder: Path
    name: str
    """What its owner calls it: the label where there is one, else the manifest's display name, else the folder."""
    status: Status
    tags: tuple[str, ...] = ()
    archived: bool = False
    project: str | None = None
    created: float | None = None
    last_sign: float | None = None
    """Wall time of the last sign of life."""
    duration_s: float | None = None
    """From the first session's start to the last sign of life, gaps between sessions left out."""
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
        """The part of its steps that is done, 0 to 1, where the number of steps is known."""
        if not self.max_steps or self.steps_done is None:
            return None
        return min(1.0, max(0.0, self.steps_done / self.max_steps))

    @property
    def steps_done(self) -> int | None:
        """How many steps are done; None before the first."""
        return None if self.step is None else steps_done(self.step, from_zero=self.from_zero)

    @property
    def open_findings(self) -> tuple[int, int]:
        """How many critical findings and how many warnings went on when the run last gave a sign."""
        counts = [self.summary.get(f"findings_{severity}", 0) for severity in ("critical", "warning")]
        critical, warning = (value if type(value) is int else 0 for value in counts)
        return critical, warning

    @property
    def live(self) -> bool:
        """Whether there may be somebody to answer a request."""
        return self.status.name in ("running", "stalled", STARTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """Every run there is, newest sign of life first."""

    cards: tuple[RunCard, ...]
    roots: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Folders that could not be listed or were refused, in words."""
    roots_cut: tuple[Path, ...] = ()
    """Those of `roots` of whose runs only the newest are here; any other can still be asked for by its key."""
    read_ms: float = 0.0

    def find(self, key: str) -> RunCard | None:
        """Return the run with this key."""
        return next((card for card in self.cards if card.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How reading went: how much there is, what could not be read, what was lost."""

    records: int = 0
    bytes_read: int = 0
    bytes_pending: int = 0
    bad_count: int = 0
    bad_lines: tuple[BadLine, ...] = ()
    replaced_at: float | None = None
    """When the log was found truncated or replaced, and read again from its start."""
    lost_records: int = 0
    """What the run itself said that it lost."""
    lost_reasons: tuple[str, ...] = ()
    read_ms: float = 0.0
    from_cache: bool = False
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether all that was on disk has been read."""
        return self.bytes_pending == 0

    @property
    def part_read(self) -> float:
        """How much of the file is read, 0 to 1."""
        whole = self.bytes_read + self.bytes_pending
        return self.bytes_read / whole if whole else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta:
    """Everything about one run that is not a curve."""

    card: RunCard
    manifest: Manifest | None
    labels: Labels
    start: Record
    """The newest start record, without which there is no configuration to show."""
    environment: Mapping[str, Any]
    writable: bool
    """Whether labels and requests can be written into the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One metric of a run and its latest value."""

    name: str
    event: str
    """The kind of record that carries it: step, system, eval or epoch."""
    count: int
    last: float
    last_step: float | None
    low: float
    high: float
    non_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Neighbouring points whose value is no number: a run of NaN or of an infinity."""

    kind: Literal["NaN", "Infinity", "-Infinity"]
    first_x: float
    last_x: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a curve, ready to be drawn."""

    x: Floats
    y: Floats
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over one window, thinned so that no extreme is hidden."""

    metric: str
    axis: XAxis
    pieces: tuple[Piece, ...]
    """The curve as it counts today, a piece a session."""
    abandoned: tuple[Piece, ...] = ()
    """What earlier sessions wrote behind the step that a later one began again from."""
    smooth: tuple[Piece, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    drawn: int = 0
    total: int = 0
    """Points inside the window; `drawn` of them are in the pieces."""
    low: float | None = None
    high: float | None = None
    percentiles: tuple[float, float] | None = None
    """The 1st and 99th percentile of what is drawn: what "clip outliers" shows."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing at all to draw."""
        return self.total == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpan:
    """Where one session of a run begins."""

    session: int
    first_step: float
    first_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashed:
    """A deleted run that can still be brought back."""

    token: str
    name: str
    deleted: float
    bytes_held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Where a run's time went, as far as its records have been added up."""

    ledger: Ledger
    part: float
    """How much of the records that is, 0 to 1."""


class RunStore(Protocol):
    """Where runs live. Every method is safe to call from several threads."""

    def list_runs(self) -> RunList:
        """Return every run, from manifests and labels alone."""
        ...

    def card(self, key: str) -> RunCard:
        """Return one run as a list shows it.

        Raises:
            UnknownRun: there is no such run.
        """
        ...

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        """Return a few losses along each run's log, sampled; runs that would take too long now are left out."""
        ...

    def meta(self, key: str) -> RunMeta:
        """Return everything about a run but its curves.

        Raises:
            UnknownRun: there is no such run.
        """
        ...

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        """Read what was appended, for at most about `wait_s`; the rest goes on in the background."""
        ...

    def metrics(self, key: str, *, rank: int = 0) -> Sequence[MetricInfo]:
        """Return the metrics read so far, in the order in which they first appeared."""
        ...

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
        """Return one metric, thinned to first, lowest, highest and last of each bucket and every non-finite point.

        `smoothing` is the weight of the past in a debiased exponential average over every point, 0 for none.
        """
        ...

    def sessions(self, key: str) -> Sequence[SessionSpan]:
        """Return where each session that has logged a step begins, first one first."""
        ...

    def jobs(self, key: str) -> Sequence[Session]:
        """Return the sessions that the run's manifest tells of, first one first, from the manifest alone.

        Their `session_tag` is the one that somebody gave them.
        """
        ...

    def recent(self, key: str, metric: str, count: int) -> Floats:
        """Return the last values of a metric, at most `count` of them."""
        ...

    def beside(self, key: str, metric: str, moment: float, count: int) -> tuple[Floats, Floats]:
        """Return a metric's values just before and just after a wall time, at most `count` of each, oldest first."""
        ...

    def means(self, key: str, metric: str, buckets: int) -> Floats:
        """Return the mean of each of about `buckets` equal parts of a metric's finite values: a picture for a card."""
        ...

    def table(self, key: str, metrics: Sequence[str] | None = None) -> Mapping[str, Floats]:
        """Return metrics of the step records as columns of one length, with `global_step`, `time` and `session`."""
        ...

    def present(self, key: str, metrics: Sequence[str]) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Return which rows of `table` have each metric: a NaN that was logged is no empty cell."""
        ...

    def events(self, key: str, kinds: Iterable[str] | None = None, *, limit: int = 200) -> Sequence[Record]:
        """Return the newest records that are not steps or system samples, newest first."""
        ...

    def spans(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> SpanTable:
        """Return the spans read so far, taking in those that were appended for at most about `wait_s`."""
        ...

    def span_records(
        self, key: str, places: Sequence[tuple[int, int]], *, rank: int = 0
    ) -> Sequence[Record | None]:
        """Return the whole records of spans, by the offset and length that the columns have for them."""
        ...

    def completions(self, key: str) -> Completions:
        """Return the run's completions, which are read from the end of its records on as they are asked for."""
        ...

    def trace(self, key: str) -> Iterator[bytes]:
        """Return the run's spans, of all sessions and ranks, as a Chrome trace in pieces.

        Raises:
            Refused: the records cannot be read.
        """
        ...

    def examine(self, key: str, *, wait_s: float = 0.3) -> float:
        """Have the detectors look at what was appended, for at most about `wait_s`.

        Returns the part of the records that they have seen, 0 to 1; what is left waits for the next call.
        """
        ...

    def findings(self, key: str) -> Sequence[Finding]:
        """Return what the detectors found in the records examined so far, in the order in which it was noticed.

        What the run itself was told while it ran is in its `finding` records, under the same ids.
        """
        ...

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        """Add up where the time went that was told of since, for at most about `wait_s`; what is left waits."""
        ...

    def count_events(self, key: str) -> Mapping[str, int]:
        """Return how many records of each kind have been read."""
        ...

    def ranks(self, key: str) -> Sequence[int]:
        """Return the ranks that wrote records of their own, 0 among them."""
        ...

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        """Return a file that a record points to, which lies inside the run's folder.

        Raises:
            Refused: it leads out of the folder, through a link, or is no regular file, or too large.
        """
        ...

    def log_path(self, key: str) -> Path:
        """Return where the run's records are, for a download."""
        ...

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        """Write a request for the run and return its id; the answer comes as a control_change record.

        Raises:
            Refused: the run cannot be asked, or the request is not one.
        """
        ...

    def pending_request(self, key: str) -> Mapping[str, Any] | None:
        """Return what lies in the run's control file now, answered or not."""
        ...

    def label(self, key: str, labels: Labels) -> None:
        """Keep a run's name, tags, notes and whether it is archived.

        Raises:
            Refused: they cannot be written.
        """
        ...

    def delete(self, key: str) -> str:
        """Move a run to the trash and return the token that brings it back.

        Raises:
            Refused: the run is live, or cannot be moved.
        """
        ...

    def trash(self) -> Sequence[Trashed]:
        """Return what lies in the trash, newest first."""
        ...

    def restore(self, token: str) -> str:
        """Bring a run back and return its key.

        Raises:
            Refused: it is gone, or its place is taken.
        """
        ...

    def empty_trash(self) -> int:
        """Delete what lies in the trash for good and return how many runs that were."""
        ...
