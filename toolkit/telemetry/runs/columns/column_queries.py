"""Queries on the columns of one record file, wherever its records come from."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from toolkit.telemetry.core.deadline import is_over
from toolkit.telemetry.formulas.evaluation import Setting, no_settings
from toolkit.telemetry.formulas.formula import FormulaError, is_formula, parse
from toolkit.telemetry.runfolder.records import Record
from toolkit.telemetry.runs.columns.derived import DerivedColumns
from toolkit.telemetry.runs.columns.run_columns import EventPlaces, MetricColumn, RunColumns
from toolkit.telemetry.runs.columns.span_reader import SpanReader
from toolkit.telemetry.runs.columns.thinning import level_for
from toolkit.telemetry.runs.columns.tiles import CurveBuilder
from toolkit.telemetry.runs.curve_tiles import FACTOR, METRIC_AXIS, CurveTiles, TileQuery
from toolkit.telemetry.runs.record_source import Place
from toolkit.telemetry.runs.spans import SpanTable
from toolkit.telemetry.runs.store import Floats, Health, MetricInfo, Points, Series, SessionStart


class ColumnQueries:
    """Answers from columns in memory; a subclass fills them, holding `_lock`. Thread-safe."""

    def __init__(self) -> None:
        self.used_at = time.monotonic()
        """When a page last asked for it, by the monotonic clock."""
        self.setting: Setting = no_settings
        """The run's settings, for formulas."""
        self._lock = threading.RLock()
        self._spans = SpanReader()
        self._use_columns(RunColumns())

    def _use_columns(self, columns: RunColumns) -> None:
        self._columns = columns
        self._derived = DerivedColumns(columns)
        self._curves = CurveBuilder(columns)

    @abstractmethod
    def refresh(self, wait_s: float) -> Health:
        """Read what is new. What takes longer than `wait_s` continues in a background thread."""

    @abstractmethod
    def read_records(self, places: Sequence[Place]) -> Sequence[Record | None]:
        """Return the records at these offsets and lengths; None for invalid ones. Raises OSError."""

    @property
    def nbytes(self) -> int:
        """Memory used by the columns."""
        with self._lock:
            columns = self._columns
            held = sum(metric.rows.nbytes + metric.values.nbytes for metric in columns.metrics.values())
            held += self._derived.nbytes + self._curves.nbytes
            return held + 5 * columns.time.nbytes + self._spans.nbytes

    def metrics(self) -> list[MetricInfo]:
        """Return the metrics read so far."""
        with self._lock:
            found = []
            for name, metric in self._columns.metrics.items():
                row = int(metric.rows.values[-1])
                found.append(
                    MetricInfo(
                        name=name,
                        event=metric.event,
                        count=len(metric.values),
                        last=float(metric.values.values[-1]),
                        last_step=float(self._columns.step.values[row]),
                        low=float(metric.low),
                        high=float(metric.high),
                        non_finite=metric.non_finite,
                    )
                )
            return found

    def named(self, name: str) -> str:
        """Return the metric that is meant by `name`."""
        return name

    def column(self, name: str) -> MetricColumn | None:
        """Return the column of a metric or formula, the same object as long as it only grows; None if it has no values.

        A formula begins with `=`.
        """
        if is_formula(name):
            return self.formula_column(name)[0]
        with self._lock:
            return self._columns.metrics.get(name)

    def formula_column(self, text: str) -> tuple[MetricColumn | None, str | None]:
        """Return the column of a formula, or None and why there is none, in a sentence.

        At the deadline of the answer it is what has been computed so far; the next call continues.
        """
        try:
            formula = parse(text)
            # Before the lock: a store takes its own lock to find them, and this one inside it.
            settings = {name: self.setting(name) for name in formula.all_of("setting")}
            while True:
                with self._lock:
                    derived = self._derived
                    kept = derived.find(text, settings.get, lambda: [one.name for one in self.metrics()])
                with kept.computing:
                    with self._lock:
                        given = derived.given(kept)
                    if given is None or is_over():
                        break
                    # Without the lock: others get at the columns.
                    computed = derived.compute(kept, given)
                    with self._lock:
                        derived.add(kept, given, computed)
        except FormulaError as error:
            return None, str(error)
        if not len(kept.column.values):
            if given is not None:
                return None, None
            return None, "The formula has no value yet: not all of its metrics have been logged."
        return kept.column, None

    def tiles(self, name: str, axis: str, query: TileQuery, planned: tuple[int | None, bool]) -> CurveTiles:
        """Return what `query` asks for of one metric; `planned` are the last step and whether steps begin at 0."""
        with self._curve(name, axis) as (column, along, computed, problem):
            tiles = self._curves.tiles(name, column, axis, along, query, planned)
        return replace(tiles, problem=problem or tiles.problem, computed=computed)

    def series(
        self,
        name: str,
        axis: str,
        window: tuple[float, float] | None = None,
        buckets: int = 600,
        planned: tuple[int | None, bool] = (None, False),
    ) -> Series:
        """Return one metric as points."""
        with self._curve(name, axis) as (column, along, computed, problem):
            series = self._curves.series(name, column, axis, along, buckets, planned, window)
        return replace(series, problem=problem or series.problem, computed=computed)

    @contextmanager
    def _curve(
        self, name: str, axis: str
    ) -> Iterator[tuple[MetricColumn | None, MetricColumn | None, float, str | None]]:
        """Hold the lock; yield the columns of a metric and of the one that is its x axis, if any.

        Also how much of them is computed, and why it is not all.
        """
        names = [name, *([axis.removeprefix(METRIC_AXIS)] if axis.startswith(METRIC_AXIS) else [])]
        problems = [self.formula_column(one)[1] for one in names if is_formula(one)]
        with self._lock:
            column, along = (*(self._columns.column(self.named(one)) for one in names), None)[:2]
            computed = min(map(self._derived.fraction, names))
            yield column, along, computed, next(filter(None, problems), None)

    def newest(self) -> tuple[float, int | None] | None:
        """Return time and step of the last record with metrics, or None before the first."""
        with self._lock:
            if not self._columns.rows:
                return None
            time_s, step = float(self._columns.time.values[-1]), float(self._columns.step.values[-1])
            if not np.isfinite(time_s):
                return None
            return time_s, int(step) if np.isfinite(step) and self._columns.counts["step"] else None

    def sessions(self) -> list[SessionStart]:
        """Return where each session that has logged a step starts."""
        with self._lock:
            times = self._columns.time.values
            return [
                SessionStart(
                    session=segment.session,
                    first_step=segment.first_step,
                    first_time=float(times[segment.start]),
                )
                for segment in self._columns.segments
                if segment.first_step is not None
            ]

    def recent(self, name: str, count: int) -> Floats:
        """Return the last values of a metric."""
        self.column(name)
        with self._lock:
            metric = self._columns.column(self.named(name))
            if metric is None or count < 1:
                return np.empty(0)
            return metric.values.values[-count:].copy()

    def values_around(self, name: str, time_s: float, count: int) -> tuple[Floats, Floats]:
        """Return a metric's values just before and just after a wall time, at most `count` of each."""
        self.column(name)
        with self._lock:
            metric = self._columns.column(self.named(name))
            if metric is None or count < 1:
                return np.empty(0), np.empty(0)
            times = self._columns.time.values[metric.rows.values]
            values = metric.values.values
            # In file order: a clock that was set back does not reorder records.
            later = np.flatnonzero(times > time_s)
            split = int(later[0]) if len(later) else len(values)
            return values[max(0, split - count) : split].copy(), values[split : split + count].copy()

    def means(self, name: str, buckets: int) -> Floats:
        """Return the mean of each of at most `buckets` parts of a metric, NaN for a part without a number.

        The parts are the buckets of a tile, so that appending points rarely changes an older one.
        """
        self.column(name)
        with self._lock:
            metric = self._columns.column(self.named(name))
            if metric is None:
                return np.empty(0)
            values = metric.values.values
            finite = np.isfinite(values)
            starts = np.arange(0, len(values), FACTOR ** level_for([len(values)], buckets))
            sums = np.add.reduceat(np.where(finite, values, 0.0) if metric.non_finite else values, starts)
            with np.errstate(invalid="ignore"):
                return np.asarray(sums / np.add.reduceat(finite.astype(np.float64), starts))

    def table(self, names: Sequence[str] | None, rows: tuple[int, int] | None = None) -> dict[str, Floats]:
        """Return metrics as columns of one length, with step, time and session; missing are NaN, of `rows` masked."""
        wanted = [info.name for info in self.metrics()] if names is None else names
        for name in filter(is_formula, wanted):
            self.column(name)
        with self._lock:
            columns = self._columns
            first, last = rows or (0, columns.rows)
            session = np.zeros(columns.rows)
            for segment in columns.segments:
                session[segment.start : segment.end] = segment.session
            table: dict[str, Floats] = {
                "global_step": columns.step.values[first:last].copy(),
                "time": columns.time.values[first:last].copy(),
                "session": session[first:last],
            }
            for name in wanted:
                metric = columns.column(name)
                if metric is not None:
                    at = slice(*np.searchsorted(metric.rows.values, (first, last)))
                    column = np.ma.array(np.full(len(table["time"]), np.nan), mask=True)
                    column[metric.rows.values[at] - first] = metric.values.values[at]
                    table[name] = column.data if rows is None else column
            return table

    def columns(self) -> RunColumns:
        """Return everything read so far; it may grow meanwhile."""
        return self._columns

    def points(self, name: str) -> Points | None:
        """Return every point of a metric or formula, in the order of the file, and where it is; None if it has none."""
        self.column(name)
        with self._lock:
            columns = self._columns
            metric = columns.column(self.named(name))
            if metric is None:
                return None
            rows = metric.rows.values
            session, is_current = np.zeros(columns.rows, dtype=np.int64), np.zeros(columns.rows, dtype=bool)
            for segment, until in columns.counting():
                session[segment.start : segment.end] = segment.session
                is_current[segment.start : until] = True
            return Points(
                session=session[rows],
                step=columns.step.values[rows],
                value=metric.values.values.copy(),
                offset=columns.at.values[rows],
                is_current=is_current[rows],
            )

    def counts(self) -> dict[str, int]:
        """Return how many records of each kind were read."""
        with self._lock:
            return dict(self._columns.counts)

    def events(self, kinds: Iterable[str] | None, limit: int) -> list[Record]:
        """Return the newest records without metrics, newest first."""
        with self._lock:
            columns = self._columns
            names = columns.event_names if kinds is None else kinds
            starts, lengths, _ = columns.places_of(set(names))
            places = list(zip(starts[-limit:].tolist(), lengths[-limit:].tolist(), strict=True))
        return [record for record in self.records_at(places[::-1]) if record is not None]

    def places_of(self, kinds: Collection[str]) -> tuple[RunColumns, EventPlaces]:
        """Return the places of the events of these kinds; other columns mean that the file was replaced."""
        with self._lock:
            return self._columns, self._columns.places_of(kinds)

    def records_at(self, places: Sequence[Place]) -> Sequence[Record | None]:
        """Return the records at these offsets and lengths; None for invalid ones."""
        try:
            return self.read_records(places)
        except OSError:
            return [None] * len(places)

    def spans(self, wait_s: float) -> SpanTable:
        """Return the spans read so far, after reading new ones for at most about `wait_s`."""
        with self._lock:
            columns = self._columns
            heard: dict[int, float] = {}
            for segment in columns.segments:
                time_s = float(columns.time.values[segment.end - 1])
                if np.isfinite(time_s):
                    heard[segment.session] = max(time_s, heard.get(segment.session, time_s))
        return self._spans.read(self.read_records, columns, heard, wait_s)
