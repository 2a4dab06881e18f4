"""Spans as columns: selecting time windows, and totals by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.timing.names import FOLDED, HOST_CLOCK
from toolkit.telemetry.timing.span_summary import SpanSummary, together

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Window = tuple[float, float]

FAILED: Final = 1
"""It ended with an exception."""
UNFINISHED: Final = 2
"""It was open when the run ended."""
HAS_MORE: Final = 4
"""Its record has attributes, an error or a thread."""

REASONS: Final = ("", "start", "end", "incident", "asked")
"""Why a short span was recorded individually; a column has the indices."""


class SpanName(NamedTuple):
    """The name of spans, and the clock that timed them."""

    name: str
    clock: str

    @property
    def label(self) -> str:
        """The label of its bars."""
        return self.name if self.clock == HOST_CLOCK else f"{self.name} ({self.clock})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTable:
    """The spans read so far, as columns of one length, in file order."""

    names: tuple[SpanName, ...] = ()
    order: tuple[int, ...] = ()
    """Indices into `names`, each after its parent."""
    depth: tuple[int, ...] = ()
    """The nesting depth of each of `names`."""
    name: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    start: Floats = field(default_factory=lambda: np.empty(0))
    """Wall time in seconds."""
    duration: Floats = field(default_factory=lambda: np.empty(0))
    """Seconds; NaN for a span without an end."""
    step: Floats = field(default_factory=lambda: np.empty(0))
    """NaN if unknown."""
    session: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    flags: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    kept: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    offset: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Offset of its record in the file."""
    length: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    heard: Mapping[int, float] = field(default_factory=dict)
    """The time of each session's last record: spans without an end are drawn up to it."""
    summaries: Mapping[int, Mapping[str, SpanSummary]] = field(default_factory=dict)
    """The last span summary of each session."""
    fraction_read: float = 1.0

    def __len__(self) -> int:
        return len(self.start)

    def ends(self) -> Floats:
        """Return the end of each span, or the latest known time of an open one."""
        ends = self.start + self.duration
        unended = np.flatnonzero(np.isnan(ends))
        if len(unended):
            ends[unended] = self.start[unended]
            for session, time_s in self.heard.items():
                rows = unended[self.session[unended] == session]
                ends[rows] = np.maximum(self.start[rows], time_s)
        return ends

    def why_kept(self, row: int) -> str:
        """Return why a short span was recorded individually: start, end, incident, asked or empty."""
        return REASONS[int(self.kept[row])]

    def whole(self) -> Window | None:
        """Return the time range of all spans."""
        return (float(self.start.min()), float(self.ends().max())) if len(self) else None


# ---------------------------------------------------------------- time windows


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailedSteps:
    """Consecutive steps whose short spans were recorded individually."""

    session: int
    first: int
    last: int
    why: str
    window: Window


def detailed_steps(table: SpanTable) -> list[DetailedSteps]:
    """Return the ranges of steps recorded in detail, in order."""
    steps = _kept_steps(table)
    breaks = (np.diff(steps.step) > 1) | (np.diff(steps.session) != 0)
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(steps.step)]
    return [
        DetailedSteps(
            session=int(steps.session[first]),
            first=int(steps.step[first]),
            last=int(steps.step[end - 1]),
            why=REASONS[int(np.bincount(steps.kept[first:end], minlength=1).argmax())],
            window=(float(steps.start[first:end].min()), float(steps.end[first:end].max())),
        )
        for first, end in pairwise(edges)
        if end > first
    ]


def last_steps(table: SpanTable, count: int) -> Window | None:
    """Return the time range of the last `count` steps recorded in detail, else of the last spans."""
    steps = _kept_steps(table)
    if not len(steps.step):
        return _last_spans(table)
    newest = np.flatnonzero(steps.session == steps.session.max())[-count:]
    return float(steps.start[newest].min()), float(steps.end[newest].max())


def adjacent_steps(table: SpanTable, window: Window, count: int, *, later: bool) -> Window | None:
    """Return the time range of `count` detailed steps before or after `window`; None if there are none."""
    steps = _kept_steps(table)
    middles = (steps.start + steps.end) / 2
    found = np.flatnonzero(middles > window[1] if later else middles < window[0])
    if not len(found):
        return None
    found = found[np.argsort(middles[found], kind="stable")]
    edge = found[0] if later else found[-1]
    same = found[steps.session[found] == steps.session[edge]]
    chosen = same[:count] if later else same[-count:]
    return float(steps.start[chosen].min()), float(steps.end[chosen].max())


def steps_in(table: SpanTable, window: Window) -> tuple[int, int] | None:
    """Return the first and last detailed step whose middle is in `window`."""
    steps = _kept_steps(table)
    middles = (steps.start + steps.end) / 2
    found = steps.step[(middles >= window[0]) & (middles <= window[1])]
    return (int(found.min()), int(found.max())) if len(found) else None


def within(table: SpanTable, window: Window, limit: int) -> tuple[Rows, int]:
    """Return the `limit` longest spans that overlap `window`, and how many overlap it."""
    rows = np.flatnonzero((table.start <= window[1]) & (table.ends() >= window[0]))
    total = len(rows)
    if total > limit:
        length = table.ends()[rows] - table.start[rows]
        rows = np.sort(rows[np.argpartition(length, total - limit)[total - limit :]])
    return rows, total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps recorded in detail, by session and number."""

    session: npt.NDArray[np.int32]
    step: Floats
    start: Floats
    end: Floats
    kept: npt.NDArray[np.uint8]


def _kept_steps(table: SpanTable) -> _Steps:
    """Return the steps with individually recorded short spans, or else all steps with spans."""
    short = np.array([about.name in FOLDED for about in table.names], dtype=bool)
    known = np.isfinite(table.step)
    if known.any():
        inside = known & short[table.name]
        known = inside if inside.any() else known
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((table.step[rows], table.session[rows]))]
    step, session = table.step[rows], table.session[rows]
    firsts = np.flatnonzero(np.append(True, (np.diff(step) != 0) | (np.diff(session) != 0)))[: len(rows)]
    if not len(rows):
        return _Steps(session=session, step=step, start=step, end=step, kept=table.kept[rows])
    return _Steps(
        session=session[firsts],
        step=step[firsts],
        start=np.minimum.reduceat(table.start[rows], firsts),
        end=np.maximum.reduceat(table.ends()[rows], firsts),
        kept=np.maximum.reduceat(table.kept[rows], firsts),
    )


def _last_spans(table: SpanTable) -> Window | None:
    if not len(table):
        return None
    ends = table.ends()
    rows = np.argsort(ends, kind="stable")[-50:]
    # Long-running spans would make the window the whole run.
    length = ends[rows] - table.start[rows]
    rows = rows[length <= np.median(length) * 20]
    return float(table.start[rows].min()), float(ends[rows].max())


# ---------------------------------------------------------------- totals


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTotals:
    """Totals of the spans of each name, over all sessions."""

    by_name: Mapping[str, SpanSummary]
    sessions_summed: int
    """Sessions with a summary, which includes spans not recorded individually."""
    sessions_counted: int
    """Sessions without one, whose recorded spans were counted."""


def totals(table: SpanTable) -> SpanTotals:
    """Return count, total, p50, p95 and maximum by name; over several sessions p50 and p95 are weighted means."""
    parts: dict[str, list[SpanSummary]] = {}
    unsummed = sorted(set(np.unique(table.session).tolist()) - set(table.summaries))
    for summary in table.summaries.values():
        for name, one in summary.items():
            parts.setdefault(name, []).append(one)
    for session in unsummed:
        for name, one in _counted(table, session):
            parts.setdefault(name, []).append(one)
    return SpanTotals(
        by_name={name: together(found) for name, found in parts.items()},
        sessions_summed=len(table.summaries),
        sessions_counted=len(unsummed),
    )


def _counted(table: SpanTable, session: int) -> Iterator[tuple[str, SpanSummary]]:
    rows = np.flatnonzero((table.session == session) & np.isfinite(table.duration))
    for number, about in enumerate(table.names):
        took = table.duration[rows[table.name[rows] == number]]
        if len(took):
            half, most = np.quantile(took, (0.5, 0.95))
            yield (
                about.label,
                SpanSummary(
                    count=len(took),
                    total=float(took.sum()),
                    p50=float(half),
                    p95=float(most),
                    longest=float(took.max()),
                ),
            )
