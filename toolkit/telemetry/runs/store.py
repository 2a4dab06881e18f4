"""The RunStore protocol, through which pages access runs, and its data types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.runfolder.key_values import Scalar
from toolkit.telemetry.runfolder.labels import Labels, ProjectSettings
from toolkit.telemetry.runfolder.listed_run import progress_of
from toolkit.telemetry.runfolder.manifest import Evaluation, Manifest, Session
from toolkit.telemetry.runfolder.node_folders import RankTail
from toolkit.telemetry.runfolder.reader import BadLine
from toolkit.telemetry.runfolder.records import Record, steps_done
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.labels import Label, RunName, labels_of

if TYPE_CHECKING:
    # The listing of runs works in the bare install.
    import numpy as np
    import numpy.typing as npt

    from toolkit.telemetry.diagnostics.finding import Finding
    from toolkit.telemetry.runs.completions import Completions
    from toolkit.telemetry.runs.curve_tiles import CurveTiles, NonFiniteRun, TileQuery
    from toolkit.telemetry.runs.rank_grid import RankGrid
    from toolkit.telemetry.runs.spans import SpanTable
    from toolkit.telemetry.timing.ledger import Ledger

FIRST_COLUMNS: Final = ("global_step", "time", "session")
"""The columns of every table of metrics."""
Floats: TypeAlias = "npt.NDArray[np.float64]"
SortBy = Literal["last sign", "started", "name", "loss", "progress", "duration", "status"]
"""How a list of runs is sorted; `run_search.sort_cards` defines each order."""

STARTING = "starting"
UNREADABLE = "unreadable"
NO_END = "no end"
"""Of another tool's run, in which no end was written: it may still run."""


STILL_LOOKING = "still looking for runs of other tools"
"""A problem of a list: more runs may follow soon."""


class UnknownRun(LookupError):  # noqa: N818 - the name says what happened
    """No run has this key; `near` has the most similar keys."""

    def __init__(self, key: str, near: Sequence[str]) -> None:
        super().__init__(f"there is no run {key!r}")
        self.key = key
        self.near = tuple(near)


class StoreUnavailable(UnknownRun):
    """The store does not answer, so it is unknown whether there is a run with this key; `why` is a sentence."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(key, ())
        self.why = why


class Refused(ValueError):  # noqa: N818 - the name says what happened
    """The store refuses a request; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """One run in a list: from its manifest and labels, or without a manifest from its first and last records."""

    id: str = ""
    """The id in its manifest, or the one that the tool which logged it gave it."""
    key: str
    """Its key in the URL, unique in its store.

    For local folders: the folder's name; if several log directories have it, prefixed with the name of its own.
    """
    place: str
    """Where the run is, for people: its folder, with the node in front if that is another one."""
    path: Path | None = None
    """The run's folder, if this process can reach it."""
    name: str
    """The name in its labels, else the manifest's display name, else the folder."""
    status: Status
    """As of the time of the call, worked out where the run is: only its own node can ask for its process."""
    tags: tuple[str, ...] = ()
    archived: bool = False
    project: str | None = None
    team: str | None = None
    """Whose store it is in; None if there is one store. Its key and its project begin with it."""
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
    """The last training loss."""
    loss_metric: str | None = None
    """The metric that is the training loss."""
    lr: float | None = None
    samples_per_sec: float | None = None
    host: str = ""
    sessions: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Scalar] = field(default_factory=dict)
    """The configuration in one level, by usual names such as `learning_rate`; empty while it is unknown."""
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """The last and the best value of each metric that evaluates the model, and of the training loss."""
    colour: str | None = None
    """The colour in its labels; `charts.palette.run_colour` returns one for every run."""
    problem: str | None = None
    """Why the folder or a part of it could not be read."""
    is_cut: bool = False
    """Whether its records end before the last one that run.json counts; `problem` says so."""
    format: str = OURS
    """The format of its files, as `telemetry ls --format` takes it."""
    deleted: bool = False
    """Whether it is in the trash, or its own tool deleted it; stores leave such runs out."""
    logged_by: str | None = None
    """The tool that logged it, if that is another one: nothing in its folder is changed."""

    @property
    def progress(self) -> float | None:
        """The fraction of steps done, if the total is known."""
        return progress_of(self.step, self.max_steps, from_zero=self.from_zero)

    @property
    def steps_done(self) -> int | None:
        """The number of steps done; None before the first."""
        if self.step is None or self.step == self.max_steps:
            # The record after the last step, such as an evaluation, is not one more.
            return self.step
        return steps_done(self.step, from_zero=self.from_zero)

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


def card_labels(cards: Iterable[RunCard]) -> dict[str, Label]:
    """Return what each run is called among these, by key."""
    runs = list(cards)
    names = [RunName(card.name, card.place, card.key, lambda card=card: card.config) for card in runs]  # type: ignore[misc]
    return {card.key: label for card, label in zip(runs, labels_of(names), strict=True)}


def labelled(cards: Iterable[RunCard]) -> dict[str, RunCard]:
    """Return the runs by key, each named so that no two of them are called the same."""
    runs = list(cards)
    labels = card_labels(runs)
    return {card.key: replace(card, name=labels[card.key].text) for card in runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs to list: those for which every condition holds."""

    project: str | None = None
    """Only runs of exactly this project."""
    text: str = ""
    """A search in the language of `run_search.parse`."""
    statuses: tuple[str, ...] = ()
    """Only runs with one of these statuses; empty for any."""
    archived: bool = True
    """Whether archived runs are included."""
    sort: str = "last sign"
    """One of SortBy, or an order of `run_search.sort_cards`."""
    page: int = 1
    """Which part of the list, from 1; beyond the last one it is the last one."""
    per_page: int | None = None
    """How many runs a page has; None for all of them, 0 for the counts alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """The runs that a query found, in its order, and how many there are without it."""

    cards: tuple[RunCard, ...]
    """One page of the runs found."""
    places: tuple[str, ...]
    """Where the store looks for runs."""
    matching: int = 0
    """How many runs the query found, on all pages."""
    page: int = 1
    """Which page `cards` is."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """How many runs have each status, without archived ones; the query does not matter."""
    archived_statuses: Mapping[str, int] = field(default_factory=dict)
    """The same for archived runs."""
    tags: tuple[str, ...] = ()
    """The tags of all runs, sorted; the query does not matter."""
    projects: tuple[str, ...] = ()
    """The projects of all runs, sorted; the query does not matter."""
    problems: tuple[str, ...] = ()
    """Descriptions of places that could not be listed and of entries that were skipped."""
    is_stale: bool = False
    """Whether the store does not answer, so that this is what it had before; `problems` say since when."""
    truncated: tuple[str, ...] = ()
    """Those of `places` with more runs than listed; the others can still be opened by key."""
    read_ms: float = 0.0

    @property
    def total(self) -> int:
        """How many runs there are, archived ones included."""
        return sum(self.statuses.values()) + sum(self.archived_statuses.values())

    def find(self, key: str) -> RunCard | None:
        """Return the run with this key."""
        return next((card for card in self.cards if card.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of reading a log: how much was read, bad lines, lost records."""

    records: int = 0
    bytes_read: int = 0
    """The offset in the file up to which every line was read."""
    bytes_pending: int = 0
    """Bytes after it that the store has and has not read yet."""
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
    lag_s: float | None = None
    """How long ago the copy that was read was up to date, for a store that reads a copy; None for the file itself."""
    behind_bytes: int = 0
    """Bytes of the file that the copy did not have then."""
    gaps: int = 0
    """Places where the copy lacks lines; nothing after the first one was read."""
    is_stale: bool = False
    """Whether the store does not answer now; `problem` says since when."""

    @property
    def complete(self) -> bool:
        """Whether everything that the store has was read."""
        return self.bytes_pending == 0

    @property
    def fraction_read(self) -> float:
        """The fraction of the file that has been read."""
        whole = self.bytes_read + self.bytes_pending
        return self.bytes_read / whole if whole else 1.0


MOST_STARTS: Final = 20


def of_newest_session(records: Sequence[Record]) -> Record:
    """Return the fields of the newest session's records, given newest first; of a field the newest one."""
    sessions = [session if type(session := one.get("session")) is int else 0 for one in records]
    newest = max(sessions, default=0)
    found: Record = {}
    for record, session in zip(reversed(records), reversed(sessions), strict=True):
        found |= record if session == newest else {}
    return found


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
    """Whether labels and requests of this run can be written."""
    control_refusal: str | None = None
    """Why this store delivers no requests, as a sentence; None if it does."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """Of another tool's run: format, files, writer's version and what was passed over, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What is known of a request that the run has not answered."""

    text: str
    """As shown after what was asked."""
    is_over: bool
    """Whether no answer can come any more."""


PENDING: Final = Delivery(text="pending", is_over=False)


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
class Points:
    """Every point of one metric, in the order of the file, and where in it each is. All arrays have the same length."""

    session: npt.NDArray[np.int64]
    step: Floats
    value: Floats
    offset: npt.NDArray[np.int64]
    """Where the record of a point begins in the record file; -1 where that is not known."""
    is_current: npt.NDArray[np.bool_]
    """Whether no later session did the same steps again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSegment:
    """The part of a curve from one session."""

    x: Floats
    y: Floats
    session: int
    time: Floats | None = None
    """The wall time of each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric over one window, downsampled without hiding extremes."""

    metric: str
    axis: str
    segments: tuple[CurveSegment, ...]
    """The current curve, one segment per session."""
    superseded: tuple[CurveSegment, ...] = ()
    """Points of earlier sessions after the step from which a later one resumed."""
    non_finite: tuple[NonFiniteRun, ...] = ()
    drawn: int = 0
    total: int = 0
    """Points inside the window; `drawn` of them are in the segments."""
    computed: float = 1.0
    """How much of a formula was computed before the deadline of the answer; the next question continues."""
    problem: str | None = None
    """Why there is less than was asked for, as a sentence."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return self.total == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """What a store keeps on the disk of this machine between two starts."""

    place: str | None
    """Its folder; None if there is nowhere to put it."""
    bytes_held: int = 0
    problem: str | None = None
    """Why the folder is not used, as the end of a sentence about it; None if it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What brings the records of one node to a store."""

    node: str
    lag_s: float
    """How long ago it was heard of, by the store's own clock."""
    behind_bytes: int = 0
    clock_ahead_s: float = 0.0
    problem: str | None = None


class RankSign(NamedTuple):
    """The last sign of one rank."""

    tail: RankTail
    lost: str | None
    """`rank_dead` or `rank_silent`, if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """The stores that the pages read."""

    kind: Literal["folders", "engine"]
    places: tuple[str, ...]
    """Log directories, or the engine's address without a password."""
    version: str | None = None
    feeds: tuple[Feed, ...] = ()


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
    """Access to runs. Thread-safe.

    Two stores that hold the same records give the same answers: equal dataclasses, and arrays equal byte for byte,
    NaN included, unless a method says otherwise. What depends on where a run is kept may differ: `key`, `place`,
    `path`, `problem`, `is_cut` and `why` of a card, times of reading, and `Health.from_cache`.

    Which numbers of a record are metrics is defined by `toolkit.telemetry.runfolder.metrics`. "So far" means: in the
    records that `refresh` has read; every other method answers at once from these. A `key` of no run raises UnknownRun.
    """

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        """Return the runs that `query` finds, without one all of them, the last updated first.

        Comes from manifests and labels only. Runs that are equal in the query's order are sorted by their last sign of
        life, newest first. Without `per_page` a store may list its newest runs only; `truncated` then names the place.

        Raises:
            ValueError: the query's `text` is invalid; the message says which part (`run_search.QueryError`).
        """

    def card(self, key: str) -> RunCard:
        """Return one run's card, with time and step of the newest record read so far if that is newer."""

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        """Return about `points` losses along each run, for a rough shape; runs that would take too long are left out.

        Which points are taken differs between stores.
        """

    def meta(self, key: str) -> RunMeta:
        """Return everything about a run except its curves."""

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        """Read new records of one rank, for at most about `wait_s`; the rest continues in the background."""

    def refresh_all(self, keys: Sequence[str], *, wait_s: float = 2.0) -> Sequence[Health]:
        """Return what `refresh` returns for rank 0 of each of `keys`; together it may cost less."""

    def metrics(self, key: str, *, rank: int = 0) -> Sequence[MetricInfo]:
        """Return the metrics so far, in the order in which they first appeared.

        Values superseded by a later session are included. `low` and `high` are of finite values: without
        any, inf and -inf. `last_step` is the step of the last value, or the last step before it if its record has none.
        """

    def series(
        self,
        key: str,
        metric: str,
        *,
        axis: str = "step",
        window: tuple[float, float] | None = None,
        buckets: int = 600,
        rank: int = 0,
    ) -> Series:
        """Return one metric as first, minimum, maximum and last of each bucket of a tile, and all non-finite points.

        `axis` is as for `tiles`. A metric that the run has not logged is an empty series.
        """

    def tiles(
        self, key: str, metric: str, query: TileQuery, *, axis: str = "step", rank: int = 0
    ) -> CurveTiles:
        """Return the tiles of a curve that `query` asks for; of a metric that the run has not logged, no pieces.

        `axis` is one of `curve_tiles.AXES`, or `metric:` and a name. Versions differ between stores.
        """

    def formula_problem(self, key: str, text: str) -> str | None:
        """Return why the formula `text`, with a leading `=`, has no curve in this run; None if it has one."""

    def series_of(self, keys: Sequence[str], metric: str, *, buckets: int = 600) -> Mapping[str, Series]:
        """Return what `series` returns for each of `keys`, in their order; keys of no run are left out."""

    def sessions(self, key: str) -> Sequence[SessionStart]:
        """Return where each session that has logged a step starts, in the order of the file."""

    def manifest_sessions(self, key: str) -> Sequence[Session]:
        """Return the sessions in the run's manifest, oldest first; `session_tag` is None unless it was set."""

    def recent(self, key: str, metric: str, count: int) -> Floats:
        """Return the last values of a metric, at most `count`, oldest first, NaN and infinity included."""

    def values_around(self, key: str, metric: str, time_s: float, count: int) -> tuple[Floats, Floats]:
        """Return a metric's values before and after a wall time, at most `count` of each, oldest first.

        In the order of the file: everything from the first record later than `time_s` on is after it.
        """

    def means(self, key: str, metric: str, buckets: int) -> Floats:
        """Return the means of at most `buckets` parts of a metric, for a sparkline; NaN for a part without a number."""

    def table(
        self, key: str, metrics: Sequence[str] | None = None, *, rows: tuple[int, int] | None = None
    ) -> Mapping[str, Floats]:
        """Return metrics as columns with a row for each record that has metrics, NaN where it lacks one.

        First come `global_step`, which is the last known one if a record has none, `time` and `session`, then
        `metrics` in their order, or all of them; a metric that the run has not logged is left out.
        `rows` are the first one and the one after the last. Then a cell that a record lacks is masked as well, so that
        it is not a logged NaN.
        """

    def events(self, key: str, kinds: Iterable[str] | None = None, *, limit: int = 200) -> Sequence[Record]:
        """Return the newest records without metrics, and epoch records, newest first, NaN and infinity restored."""

    def spans(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> SpanTable:
        """Return the spans read so far, after reading new ones for at most about `wait_s`."""

    def span_records(
        self, key: str, places: Sequence[tuple[int, int]], *, rank: int = 0
    ) -> Sequence[Record | None]:
        """Return the full records at these offsets and lengths; None where there is no record."""

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

        Findings of the run itself are in its `finding` records, under the same ids. A store with the files themselves
        adds ranks that died or fell silent, if the run has not reported them.
        """

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        """Update the time ledger with new records, for at most about `wait_s`; the next call continues."""

    def count_events(self, key: str) -> Mapping[str, int]:
        """Return the number of records read of each kind; `with metrics` counts all that have metrics."""

    def ranks(self, key: str) -> Sequence[int]:
        """Return the ranks with their own records, ascending, including 0."""

    def rank_signs(self, key: str) -> Sequence[RankSign]:
        """Return the last sign of each rank, ascending, as of some seconds ago; nothing if the files are elsewhere.

        Stores may differ in this: whether a process is alive is known only on its own machine.
        """

    def rank_grid(self, key: str, metric: str, *, buckets: int = 64, wait_s: float = 2.0) -> RankGrid:
        """Return one metric of all ranks, after reading new records for at most about `wait_s`.

        A value counts if it is finite and its record has a step of its own, from 0 to below 2**53; so do values that a
        later session superseded. A cell is a power of two of steps wide and begins at a multiple of that; the width is
        the smallest, from 1 on, with which at most `buckets` (1 to 128) cells hold every value of every rank.
        """

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        """Return a file inside the run's folder that a record points to.

        Raises:
            Refused: it is outside the folder, a link, not a regular file, too large, or not in the store.
        """

    def record_lines(self, key: str, *, rank: int = 0) -> Iterator[bytes]:
        """Yield the record file up to its last complete line, byte for byte, in pieces of any length.

        Raises:
            Refused: it cannot be read.
        """

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        """Send a request to the run and return its id; the answer is a control_change record.

        Raises:
            Refused: the run cannot be controlled, or the request is invalid.
        """

    def delivery(self, key: str, request_id: str) -> Delivery:
        """Return what is known of a request that the run has not answered."""

    def label(self, key: str, labels: Labels) -> None:
        """Save a run's name, tags, notes and whether it is archived. Raises Refused if they cannot be written."""

    def project_settings(self, project: str | None) -> ProjectSettings:
        """Return what was chosen for a project, such as its primary metric; for None, of runs without a project."""

    def set_project_settings(self, project: str | None, settings: ProjectSettings) -> None:
        """Save the choices for a project. Raises Refused if they cannot be written."""

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

    def state(self) -> StoreState:
        """Return the stores that the pages read, for the Settings."""

    def cache_state(self) -> CacheState | None:
        """Return what the store keeps on this machine's disk; None if it keeps nothing there, by design."""

    def empty_cache(self) -> int:
        """Delete that and return the number of bytes freed; it is read again when needed."""
