"""The columns of one record file, filled from the engine: positions at once, each metric when it is looked at."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.fleet.commits import Commit
from toolkit.telemetry.fleet.engine import EngineError, quote
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.runfolder.metrics import KINDS, MAX_METRICS, metrics_of
from toolkit.telemetry.runfolder.reader import BadLine, parse_line
from toolkit.telemetry.runfolder.records import EPOCH, EVAL, LOST, MAX_LINE_BYTES, STEP, SYSTEM, Record
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.line_parser import Parsed
from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns
from toolkit.telemetry.runs.record_source import Place
from toolkit.telemetry.runs.sources.clickhouse.record_source import EngineSource
from toolkit.telemetry.runs.store import Health, MetricInfo

_WINDOW_BYTES: Final = 64 * 1024 * 1024
"""How much of a file is asked for at once."""
_LITTLE_BYTES: Final = 16 * 1024 * 1024
"""So much is read by the thread that asks; more is read in the background."""
_LITTLE_TOGETHER_BYTES: Final = 4 * 1024 * 1024
"""Files up to this size are read together."""
_CATCH_UP_BYTES: Final = 8 * 1024 * 1024
"""Beyond this the metrics that were looked at are loaded again when needed."""
_CHECK_EVERY_S: Final = 0.5
_METRICS_AT_ONCE: Final = 200
_NAMES_BYTES: Final = 100_000
_POINTS_AT_ONCE: Final = 2_000_000
_KIND_SQL: Final = (
    "toUInt8(multiIf("
    + ", ".join(f"event = {quote(kind)}, {number}" for number, kind in enumerate(KINDS, 1))
    + ", 0))"
)
_READ_EVENTS: Final = ("", LOST)
_EVENTS_SQL: Final = "event NOT IN (" + ", ".join(quote(kind) for kind in (STEP, SYSTEM, EVAL)) + ")"
_ROW: Final = np.dtype(
    [
        ("run", "<u4"),
        ("at", "<u8"),
        ("next", "<u8"),
        ("session", "<u4"),
        ("time", "<f8"),
        ("elapsed", "<f8"),
        ("step", "<f8"),
        ("epoch", "<f8"),
        ("kind", "u1"),
    ]
)
_ROW_SQL: Final = f"at, next, session, time, elapsed, step, epoch, {_KIND_SQL}"
_POINT: Final = np.dtype([("of", "<u4"), ("at", "<u8"), ("value", "<f8")])


class EngineLog(ColumnQueries):
    """One record file in the engine; each row and each metric is asked for once. Thread-safe."""

    def __init__(self, source: EngineSource) -> None:
        super().__init__()
        self.source = source
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._problem: str | None = None
        self._replaced_at: float | None = None
        self._read_ms = 0.0
        self._checked_at = -math.inf
        self._taken: Commit | None = None
        self._start_again(0)

    def _start_again(self, gen: int) -> None:
        self._gen = gen
        self._end = 0
        """Every line before this offset is in the columns."""
        self._caught_up = 0
        """How far the metrics that were looked at have their values."""
        self._gaps = 0
        self._absent: dict[str, int] = {}
        """Metrics that are not in the file, and how far it had been read then."""
        self._infos: dict[str, MetricInfo] = {}
        self._infos_end = 0
        """How far the file had been read when the metrics were counted."""
        self._use_columns(RunColumns())

    # ------------------------------------------------------------ reading

    def refresh(self, wait_s: float) -> Health:
        """Read new rows. What takes longer than `wait_s` continues in a background thread."""
        self.used_at = began = time.monotonic()
        reader = self._reader
        if reader is None or not reader.is_alive():
            reader = self._read_new()
        if reader is not None:
            reader.join(wait_s)
        self._read_ms = (time.monotonic() - began) * 1000
        return self.health()

    def read_records(self, places: Sequence[Place]) -> Sequence[Record | None]:
        """Return the records at these offsets and lengths."""
        return self.source.read_records(places)

    def _read_new(self) -> threading.Thread | None:
        """Read what is new if that is little, else start a thread that does and return it."""
        if time.monotonic() - self._checked_at < _CHECK_EVERY_S or not self._reading.acquire(blocking=False):
            return None
        try:
            end = self._read_commit()
            if end - self._end > _LITTLE_BYTES:
                self._reader = threading.Thread(
                    target=self._read_to, args=(end,), name=f"reading {self.source.name}", daemon=True
                )
                self._reader.start()
                return self._reader
            self._read_windows(end)
        except OSError as error:
            self._problem = error.strerror or str(error)
        finally:
            self._reading.release()
            self._checked_at = time.monotonic()
        return None

    def _read_commit(self) -> int:
        """Return how far the engine has the file; if it was replaced, begin again."""
        taken = self.source.taken()
        with self._lock:
            self._taken = taken
            if taken.gen != self._gen or taken.end < self._end:
                if self._gen:
                    self._replaced_at = time.time()
                self._start_again(taken.gen)
        return taken.end

    def _read_to(self, end: int) -> None:
        with self._reading:
            try:
                self._read_windows(end)
            except OSError as error:
                self._problem = str(error)

    def _read_windows(self, end: int) -> None:
        try:
            while self._end < end and self._read_window(min(end, self._end + _WINDOW_BYTES)):
                pass
            if self._end > self._caught_up:
                self._catch_up()
            self._problem = None
        except EngineError as error:
            raise OSError(str(error)) from error

    def _read_window(self, end: int) -> bool:
        """Read the lines that begin before `end`; return whether there was no gap."""
        return self._read_lines([(self, end)])[0]

    def _unread(self, end: int) -> str:
        return f"{self.source.where(self._gen)} AND at >= {self._end} AND at < {end}"

    def _add_rows(
        self, rows: npt.NDArray[Any], events: Iterable[tuple[int, int, str, bytes]], end: int
    ) -> bool:
        """Add the rows of the lines before `end`, up to the first gap; return whether there was none."""
        begin = self._end
        expected = np.concatenate(([begin], rows["next"][:-1])) if len(rows) else rows["at"]
        taken = self._taken.end if self._taken is not None else end
        wrong = np.flatnonzero(
            (rows["at"] != expected) | (rows["next"] <= rows["at"]) | (rows["next"] > taken)
        )
        if len(wrong):
            rows = rows[: wrong[0]]
        reached = int(rows["next"][-1]) if len(rows) else begin
        with self._lock:
            self._add(rows, [event for event in events if event[0] < reached])
            self._end = reached
            self._gaps = int(reached < end)
        return reached >= end

    @staticmethod
    def read_together(logs: Sequence[EngineLog]) -> None:
        """Read new rows of several files with one question; what fails or is much is left for `refresh`."""
        # Of the same class: no other thread reads these files meanwhile.
        with ExitStack() as claims:
            wanted = [(log, end) for log in logs if (end := log._claim(claims)) is not None]  # noqa: SLF001
            if len(wanted) < 2:
                return
            with suppress(EngineError, OSError):
                EngineLog._read_lines(wanted)
                for log, _ in wanted:
                    log._checked_at = time.monotonic()  # noqa: SLF001

    @staticmethod
    def _read_lines(wanted: Sequence[tuple[EngineLog, int]]) -> list[bool]:
        """Read the lines of each file that begin before an offset; return whether there was no gap."""
        link = wanted[0][0].source.link
        ids = ", ".join(quote(log.source.run_id) for log, _ in wanted)
        where = " OR ".join(f"({log._unread(end)})" for log, end in wanted)  # noqa: SLF001
        rows = link.array(
            f"SELECT toUInt32(indexOf([{ids}], run_id)), {_ROW_SQL} FROM records FINAL WHERE {where}", _ROW
        )
        events = (
            link.rows(
                f"SELECT run_id, at, next, event FROM records FINAL WHERE ({where}) AND {_EVENTS_SQL} "
                "ORDER BY run_id, at"
            )
            if ((rows["kind"] == 0) | (rows["kind"] == KINDS.index(EPOCH) + 1)).any()
            else []
        )
        found = []
        for number, (log, end) in enumerate(wanted, 1):
            own = [event[1:] for event in events if event[0] == log.source.run_id]
            # Lines are most of the table: to read one, the engine unpacks thousands.
            read = [(at, after - at - 1) for at, after, event in own if event in _READ_EVENTS]
            lines = dict(zip((at for at, _ in read), log.source.read_at(read), strict=True))
            of_run = [(*event, lines.get(event[0], b"")) for event in own]
            found.append(log._add_rows(_in_order(rows[rows["run"] == number]), of_run, end))  # noqa: SLF001
        return found

    def _claim(self, claims: ExitStack) -> int | None:
        """Return up to where a file that was never read is there, and keep other threads from reading it."""
        if self._end or not self._reading.acquire(blocking=False):
            return None
        claims.callback(self._reading.release)
        try:
            end = self._read_commit()
        except OSError:
            return None
        return end if not self._end and 0 < end <= _LITTLE_TOGETHER_BYTES else None

    def _add(self, rows: npt.NDArray[Any], events: Iterable[tuple[int, int, str, bytes]]) -> None:
        with_metrics = rows[rows["kind"] > 0]
        parsed = Parsed(
            time=np.ascontiguousarray(with_metrics["time"]),
            elapsed=np.ascontiguousarray(with_metrics["elapsed"]),
            step=np.ascontiguousarray(with_metrics["step"]),
            epoch=np.ascontiguousarray(with_metrics["epoch"]),
            session=with_metrics["session"].astype(np.int32),
            is_step=with_metrics["kind"] == KINDS.index(STEP) + 1,
            kind=with_metrics["kind"].astype(np.int8) - np.int8(1),
            at=with_metrics["at"].astype(np.int64),
            metrics={},
            kinds={},
            records=len(with_metrics),
        )
        for at, after, event, line in events:
            if not event and self._is_no_record(parsed, at, line):
                continue
            parsed.events.append((event, at, after - at - 1))
            parsed.records += event != EPOCH
            if event == LOST and isinstance(record := parse_line(at, line), dict):
                parsed.lost.append(record)
        self._columns.add(parsed)

    @staticmethod
    def _is_no_record(parsed: Parsed, at: int, line: bytes) -> bool:
        """Return whether a line without an event is not a record, and note what is wrong with it."""
        if not line:
            return True
        record = parse_line(at, line)
        if isinstance(record, BadLine):
            parsed.bad.append(record)
            return True
        if not isinstance(record.get("event"), str):
            parsed.bad.append(BadLine(at, len(line), "it has no `event` field"))
            return True
        return False

    def health(self) -> Health:
        """Return the state of reading."""
        with self._lock:
            columns, taken = self._columns, self._taken
            is_reading = self._reader is not None and self._reader.is_alive()
            pending = taken.end - self._end if taken is not None else 0
            problem = self.source.link.problem or self._problem
            if problem is None and len(self._infos) >= MAX_METRICS:
                problem = f"metrics beyond the first {MAX_METRICS:,} are not shown"
            return Health(
                records=columns.records,
                bytes_read=self._end,
                bytes_pending=max(1, pending) if is_reading else 0,
                bad_count=columns.bad_count,
                bad_lines=tuple(columns.bad_lines),
                replaced_at=self._replaced_at,
                lost_records=columns.lost_records,
                lost_reasons=tuple(columns.lost_reasons),
                read_ms=self._read_ms,
                problem=problem,
                gaps=0 if is_reading else self._gaps,
                is_stale=self.source.link.problem is not None,
            )

    # ------------------------------------------------------------ metrics

    @property
    def position(self) -> tuple[int, int]:
        """The generation, and how far it was read."""
        return self._gen, self._end

    def lacks(self, name: str) -> bool:
        """Return whether a metric would have to be asked for."""
        with self._lock:
            if not self._end or name in self._columns.metrics or self._absent.get(name) == self._end:
                return False
            return self._infos_end != self._end or name in self._infos

    def add_metric(self, name: str, position: tuple[int, int], points: npt.NDArray[Any]) -> None:
        """Take all points of a metric, unless the file was read further than `position` meanwhile."""
        points = _in_order(points)
        with self._lock:
            if position != self.position or name in self._columns.metrics:
                return
            rows, values = self._placed(points)
            if not len(rows):
                self._absent[name] = self._end
                return
            self._columns.metrics[name] = MetricColumn(
                KINDS[self._columns.kind.values[rows[0]]], rows, values
            )

    def _placed(self, points: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the rows of points by their place, and the values; without those of a line that has no metrics."""
        known = self._columns.at.values
        places = points["at"].astype(np.int64)
        is_there = np.isin(places, known)
        rows = np.searchsorted(known, places[is_there]).astype(np.int32)
        return rows, np.ascontiguousarray(points["value"][is_there])

    def load(self, names: Iterable[str]) -> None:
        """Load metrics that were not looked at before; without an answer of the engine they stay empty."""
        wanted = [name for name in dict.fromkeys(names) if not is_formula(name) and self.lacks(name)]
        if len(wanted) > 1:
            self.metrics()
        with suppress(EngineError):
            for some in self._together(wanted):
                position = self.position
                for name, points in self._points_of(some, *position).items():
                    self.add_metric(name, position, points)

    def _together(self, wanted: Sequence[str]) -> Iterator[list[str]]:
        """Yield metrics that are asked for with one question: few enough names for its text, points for its answer."""
        some: list[str] = []
        points = length = 0
        for name in wanted:
            info = self._infos.get(name)
            points, length = points + (info.count if info else 0), length + len(_text(name))
            if some and (points > _POINTS_AT_ONCE or length > _NAMES_BYTES):
                yield some
                some, points, length = [], info.count if info else 0, len(_text(name))
            some.append(name)
        if some:
            yield some

    def _points_of(
        self, names: Sequence[str], gen: int, end: int, begin: int = 0
    ) -> dict[str, npt.NDArray[Any]]:
        some = ", ".join(map(_text, names))
        points = self.source.link.array(
            f"SELECT toUInt32(indexOf([{some}], toString(metric))), at, value FROM points FINAL "
            f"WHERE {self.source.where(gen)} AND metric IN ({some}) AND at >= {begin} AND at < {end}",
            _POINT,
        )
        return {name: points[points["of"] == number] for number, name in enumerate(names, 1)}

    def _catch_up(self) -> None:
        """Read the new values of metrics that were looked at; the next time, if the engine does not answer now."""
        names, end = list(self._columns.metrics), self._end
        if names and end - self._caught_up > _CATCH_UP_BYTES:
            with self._lock:
                self._columns.metrics.clear()
                self._use_columns(self._columns)
            names = []
        for begin in range(0, len(names), _METRICS_AT_ONCE):
            some = names[begin : begin + _METRICS_AT_ONCE]
            new = self._points_of(some, self._gen, end, self._caught_up)
            with self._lock:
                for name, points in new.items():
                    column = self._columns.metrics[name]
                    rows, values = self._placed(_in_order(points))
                    is_new = rows > column.rows.values[-1]
                    column.append(rows[is_new], values[is_new])
        self._caught_up = end

    def metrics(self) -> list[MetricInfo]:
        """Return the metrics read so far."""
        with self._lock:
            if self._infos_end != self._end:
                with suppress(EngineError, OSError):
                    self._count_new_values()
            return list(self._infos.values())

    def _count_new_values(self) -> None:
        rows = self.source.link.rows(
            "SELECT metric, count(), argMax(value, at), max(at), minIf(value, isFinite(value)), "
            "maxIf(value, isFinite(value)), countIf(NOT isFinite(value)), min(at) FROM points FINAL "
            f"WHERE {self.source.where(self._gen)} AND at >= {self._infos_end} AND at < {self._end} GROUP BY metric"
        )
        columns = self._columns
        known, kinds, steps = columns.at.values, columns.kind.values, columns.step.values
        if not len(known):
            return

        def row_of(at: int) -> int:
            return min(int(np.searchsorted(known, at)), len(known) - 1)

        begins = {row[0]: row[-1] for row in rows if row[0] not in self._infos}
        # In the order in which they first appeared.
        records = self.source.read_records([(at, MAX_LINE_BYTES) for at in sorted(set(begins.values()))])
        order = dict.fromkeys(name for record in records for name, _ in metrics_of(record or {}))
        places = {name: place for place, name in enumerate((*self._infos, *order))}
        for name, count, last, last_at, low, high, bad, first_at in sorted(
            rows, key=lambda row: places.get(row[0], len(places))
        ):
            event = KINDS[kinds[row_of(first_at)]]
            before = self._infos.get(name) or MetricInfo(
                name=name,
                event=event,
                count=0,
                last=0.0,
                last_step=0.0,
                low=math.inf,
                high=-math.inf,
                non_finite=0,
            )
            is_finite = count > bad
            self._infos[name] = replace(
                before,
                count=before.count + count,
                last=float(last),
                last_step=float(steps[row_of(last_at)]),
                low=min(before.low, float(low)) if is_finite else before.low,
                high=max(before.high, float(high)) if is_finite else before.high,
                non_finite=before.non_finite + bad,
            )
        self._infos_end = self._end


def _in_order(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows of one file by their place: for the engine it would be several times the work."""
    places = rows["at"]
    return rows if (places[1:] > places[:-1]).all() else rows[np.argsort(places, kind="stable")]


def load_together(logs: Sequence[EngineLog], name: str) -> None:
    """Load one metric of several files with one question; without an answer they stay as they are."""
    wanted = [(log, log.position) for log in logs if not is_formula(name) and log.lacks(name)]
    if len(wanted) < 2:
        return
    sources = [log.source for log, _ in wanted]
    ids = ", ".join(quote(source.run_id) for source in sources)
    files = " OR ".join(
        f"({source.where(gen)} AND at < {end})"
        for source, (_, (gen, end)) in zip(sources, wanted, strict=True)
    )
    with suppress(EngineError):
        points = sources[0].link.array(
            f"SELECT toUInt32(indexOf([{ids}], run_id)), at, value FROM points FINAL "
            f"WHERE metric = {_text(name)} AND ({files})",
            _POINT,
        )
        for number, (log, position) in enumerate(wanted, 1):
            log.add_metric(name, position, points[points["of"] == number])


def _text(name: str) -> str:
    return quote(name.encode("utf-8", "replace"))
