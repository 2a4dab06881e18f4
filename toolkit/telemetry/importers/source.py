"""What every format offers: a run's points in columns, from a cursor on."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from toolkit.telemetry.runfolder.untrusted import leaves

NO_STEP: Final = -(2**63)
"""The step of a point that has none: measurements of the machine, for example."""
NO_TIME: Final = math.nan

STEP: Final = "step"
EVAL: Final = "eval"
EPOCH: Final = "epoch"
SYSTEM: Final = "system"

MAX_METRICS: Final = 5_000
MAX_RUNS: Final = 20_000
MAX_RECORD_BYTES: Final = 16 * 1024**2
MAX_TEXT_CHARS: Final = 64 * 1024
MAX_IMAGE_BYTES: Final = 8 * 1024**2
MAX_EVENTS: Final = 20_000
"""Texts, images and the like of one batch; more are only counted."""
MAX_NAME_CHARS: Final = 1_000
MAX_SETTINGS: Final = 5_000
BATCH_BYTES: Final = 64 * 1024**2

_MAX_SETTINGS_BYTES: Final = 8 * 1024**2
_MAX_EVENT_BYTES: Final = 64 * 1024**2
_MAX_STEP: Final = 2**62
_MAX_REASONS: Final = 200
_MIN_PAUSE_S: Final = 30.0
_PAUSES: Final = 3
_LAST_POINTS: Final = 16


@dataclass(slots=True)
class Column:
    """Points of one metric in the order of the file; the three arrays have the same length."""

    piece: int
    session: int
    metric: str
    kind: str
    """`step`, `eval`, `epoch` or `system`, as our own records are."""
    repeated: bool = False
    """Whether another piece of the same run has these points too."""
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Where an image or a file of a run is: inside one of its files, or a file of its own."""

    path: str
    """Relative to the source's root."""
    offset: int = 0
    length: int = -1
    """-1: to the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something in a run that is no number."""

    kind: str
    """`text`, `image`, `histogram`, `table` or `completion`."""
    piece: int = 0
    session: int = 0
    name: str = ""
    step: int = NO_STEP
    time: float = NO_TIME
    payload: Any = None
    blob: BlobRef | None = None


@dataclass(slots=True)
class Batch:
    """What was read since a cursor."""

    columns: list[Column] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cursor: Any = None
    """What the next read continues from; only its own source knows what is in it."""
    more: bool = False
    """Whether there is more to read now."""
    replaced: bool = False
    """Whether what was read before is void: a file was rewritten, so reading began again."""
    passed_over: Counter[tuple[int, str]] = field(default_factory=Counter)
    """What was not understood: piece and reason, with how often."""
    not_numbers: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Piece and name of values that are texts, images or tables, with how many."""
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a run that the tool's own reader would call a run: a file, or a folder."""

    path: str
    """Relative to the source's root."""
    prefix: str = ""
    """What is put before its metrics' names in the whole run."""


@dataclass(slots=True, kw_only=True)
class SourceInfo:
    """What is known about a run before and while it is read."""

    format: str
    source_id: str
    name: str
    root: Path
    pieces: list[Piece] = field(default_factory=list)
    group: str = ""
    parent: str = ""
    run_id: str = ""
    """The tool's own id of the run."""
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writer: str = ""
    """Version of the tool that wrote it."""
    deleted: bool = False
    """Whether the tool itself shows it as deleted."""
    axes: dict[str, str] = field(default_factory=dict)
    """Which metric is the x axis of another, where the tool was asked for it; names may end in `*`."""

    _settings_bytes: int = 0

    def keep(self, settings: Iterable[tuple[Any, Any]]) -> None:
        """Add settings of the run, as many as anyone would read."""
        for key, value in settings:
            name = str(key)[:MAX_NAME_CHARS]
            value = value[:MAX_TEXT_CHARS] if type(value) is str else value
            size = _encoded_size(value)
            if name in self.config:
                size -= _encoded_size(self.config[name])
            elif len(self.config) >= MAX_SETTINGS:
                size = _MAX_SETTINGS_BYTES
            if self._settings_bytes + size > _MAX_SETTINGS_BYTES:
                self.note("it has more settings, or longer ones, than are read")
                continue
            self._settings_bytes += size
            self.config[name] = value

    def note(self, text: str) -> None:
        """Add a remark once."""
        if text not in self.notes and len(self.notes) < _MAX_REASONS:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class Status:
    """How a run ended, as far as its files say so."""

    state: str
    """`finished`, `failed`, `running` (the tool says so), `live` (its files grow), or `unknown`: no end was written."""
    last_sign: float = NO_TIME
    """When something was last written."""
    ended: float = NO_TIME


class RunSource(Protocol):
    """One run of another tool. Nothing below its root is ever changed, and no link is followed."""

    info: SourceInfo

    def read(self, cursor: Any, *, max_bytes: int = BATCH_BYTES) -> Batch:
        """Return what is new since `cursor`, which an earlier batch gave; None reads from the start."""

    def status(self, now: float) -> Status:
        """Return how the run ended, from what was read so far."""

    def blob(self, ref: BlobRef, *, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
        """Return the bytes that an event refers to.

        Raises:
            OSError: they cannot be read, or are too many.
        """


class Builder:
    """Collects points into the columns of a batch."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.last_time = NO_TIME
        self._columns: dict[tuple[int, int, str, str | None, bool], Column] = {}
        self._names: set[str] = set()
        self._event_bytes = 0

    def column(
        self,
        metric: str,
        *,
        piece: int = 0,
        session: int = 0,
        kind: str | None = None,
        repeated: bool = False,
    ) -> Column | None:
        """Return the column to append to; None beyond the limit of metrics."""
        key = (piece, session, metric, kind, repeated)
        column = self._columns.get(key)
        if column is None:
            kind = kind_of(metric) if kind is None else kind
            if len(self._names) >= MAX_METRICS and metric not in self._names:
                self.pass_over("points of metrics beyond the first 5,000", piece=piece)
                return None
            self._names.add(metric)
            shown = metric if len(metric) <= MAX_NAME_CHARS else metric[:MAX_NAME_CHARS]
            column = self._columns[key] = Column(piece, session, shown, kind, repeated)
            self.batch.columns.append(column)
        return column

    def add(self, metric: str, step: Any, timestamp: float, value: float, **place: Any) -> None:
        """Add one point; `place` says which column, as for `column`."""
        column = self.column(metric, **place)
        if column is not None:
            column.steps.append(as_step(step))
            column.times.append(timestamp)
            column.values.append(value)

    def value(self, metric: str, step: Any, timestamp: float, value: Any, **place: Any) -> bool:
        """Add one point if `value` is a number, else count it; return whether it is one."""
        number = as_number(value)
        if number is None:
            self.not_number(metric, piece=place.get("piece", 0))
            return False
        self.add(metric, step, timestamp, number, **place)
        return True

    def event(self, event: Event) -> None:
        """Add an event, unless there are too many."""
        self._event_bytes += _size_of(event.payload)
        if len(self.batch.events) < MAX_EVENTS and self._event_bytes <= _MAX_EVENT_BYTES:
            self.batch.events.append(event)
        else:
            self.pass_over("texts and images beyond the limits of a batch", piece=event.piece)

    def pass_over(self, reason: str, count: int = 1, *, piece: int = 0) -> None:
        """Count something that was not understood."""
        counts = self.batch.passed_over
        key = (piece, reason)
        if key not in counts and len(counts) >= _MAX_REASONS:
            key = (piece, "other reasons")
        counts[key] += count

    def not_number(self, name: str, count: int = 1, *, piece: int = 0) -> None:
        """Count a value that is a text, an image or a table."""
        counts = self.batch.not_numbers
        key = (piece, name[:MAX_NAME_CHARS])
        if key in counts or len(counts) < MAX_METRICS:
            counts[key] += count

    @property
    def points(self) -> int:
        """How many points were added."""
        return sum(map(len, self.batch.columns))


def _size_of(payload: Any) -> int:
    """Return about how many bytes an event takes."""
    if type(payload) is str:
        return len(payload)
    if type(payload) is dict:
        return sum(32 * len(value) if type(value) is list else 100 for value in payload.values())
    return 100 * len(payload) if type(payload) is list else 100


def _encoded_size(value: Any) -> int:
    try:
        return len(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:
        # Nested too deeply, or a number too large.
        return len(str(value))


def kind_of(metric: str) -> str:
    """Return which kind of record our own logger would write for a metric of this name."""
    name = metric.lower()
    if name.startswith(("system/", "system.", "__system__")):
        return SYSTEM
    if name.endswith("_epoch") or name.startswith("epoch_"):
        return EPOCH
    if name.startswith(("eval", "val/", "val_", "valid/", "validation", "test/", "test_")):
        return EVAL
    return STEP


def as_step(step: Any) -> int:
    """Return `step` as an integer; `NO_STEP` for anything else."""
    if type(step) is int:
        return step if -_MAX_STEP < step < _MAX_STEP else NO_STEP
    if type(step) is float and math.isfinite(step) and abs(step) < _MAX_STEP:
        return int(step)
    return NO_STEP


WORDS: Final = {
    **dict.fromkeys(("NaN", "nan"), math.nan),
    **dict.fromkeys(("Infinity", "inf"), math.inf),
    **dict.fromkeys(("-Infinity", "-inf"), -math.inf),
}
"""Numbers that tools write as words."""


def as_number(value: Any) -> float | None:
    """Return a number or its word as a float; None for everything else, and for truth values."""
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return WORDS.get(value) if kind is str else None


def source_id(format_name: str, own_id: str) -> str:
    """Return the identity of a run: of the tool's own id, or of a real path."""
    return hashlib.sha256(f"{format_name}\0{own_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def run_info(
    format_name: str, own_id: str, name: str, root: Path, pieces: Iterable[str | Piece], **more: Any
) -> SourceInfo:
    """Return what is known about a run at first: `own_id` is the tool's own id, or a real path."""
    return SourceInfo(
        format=format_name,
        source_id=source_id(format_name, own_id),
        name=name[:MAX_NAME_CHARS],
        root=root,
        pieces=[Piece(piece) if isinstance(piece, str) else piece for piece in pieces],
        **more,
    )


def flattened(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with their joined names."""
    for path, value in leaves(mapping, depth=9):
        yield ".".join(str(part)[:MAX_NAME_CHARS] for part in path)[:MAX_NAME_CHARS], value


class Growth:
    """What shows that a log still grows."""

    def __init__(self) -> None:
        self._newest = NO_TIME
        self._pause = 0.0
        self._is_seen = False
        self._is_at_end = True

    def take(self, batch: Batch, cursor: Any) -> None:
        """Take what was read since `cursor`."""
        if cursor is not None and not batch.replaced and self._is_at_end:
            self._is_seen = self._is_seen or bool(batch.columns or batch.bytes_read)
        self._is_at_end = not batch.more
        for column in batch.columns:
            times = [timestamp for timestamp in column.times[-_LAST_POINTS:] if timestamp == timestamp]
            if times and not times[-1] < self._newest:
                before = times[0] if len(times) > 1 else self._newest
                self._newest = times[-1]
                self._pause = max((self._newest - before) / max(len(times) - 1, 1), 0.0)

    def state(self, last_sign: float, now: float) -> str:
        """Return `live` if a log that was written at `last_sign` grows, judged by the pauses between its points.

        A copy was written lately, too: its points must be as recent, or it must have grown since it was read before.
        """
        longest = max(_MIN_PAUSE_S, _PAUSES * self._pause)
        is_recent = self._is_seen or abs(now - self._newest) <= longest
        return "live" if is_recent and now - last_sign <= longest else "unknown"


def ends_of(numbers: array[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest; something that is not finite if one of them is not."""
    if numbers.typecode == "d" and not math.isfinite(sum(numbers)):
        return math.nan, math.nan
    return min(numbers), max(numbers)


def named_columns(info: SourceInfo, batch: Batch) -> Iterable[tuple[str, Column]]:
    """Yield the columns of the whole run with their names there; what another piece has too comes once."""
    for column in batch.columns:
        if not column.repeated:
            prefix = info.pieces[column.piece].prefix if column.piece < len(info.pieces) else ""
            yield f"{prefix}{column.metric}", column


def read_all(source: RunSource, *, max_bytes: int = BATCH_BYTES) -> Iterable[Batch]:
    """Yield the batches of a whole run, until nothing more is there."""
    cursor: Any = None
    while True:
        batch = source.read(cursor, max_bytes=max_bytes)
        yield batch
        if not batch.more or batch.cursor == cursor:
            return
        cursor = batch.cursor
