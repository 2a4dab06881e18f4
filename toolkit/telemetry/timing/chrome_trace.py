"""Exports a run's spans as a Chrome trace, a JSON file for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.layout import LinkedRanks, rank_file
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.reader import records_of
from toolkit.telemetry.runfolder.records import (
    CHECKPOINT,
    CONTROL_CHANGE,
    END,
    ENVELOPE,
    EPOCH,
    ERROR,
    FINDING,
    SAMPLE,
    SPAN,
    SPAN_EVENT,
    SPAN_START,
    START,
    STEP,
    Record,
)
from toolkit.telemetry.runfolder.untrusted import finite_in
from toolkit.telemetry.timing.names import DEVICE_CLOCK, TIME_PREFIX
from toolkit.telemetry.timing.span_record import Span, read_span, seconds_in

TRACE_BEGINS: Final = b'{"displayTimeUnit":"ms","otherData":{"run":'
_HAPPENED: Final = frozenset({START, END, CHECKPOINT, SAMPLE, EPOCH, FINDING, ERROR, CONTROL_CHANGE})
_LEFT_OUT: Final = frozenset({*ENVELOPE, "config", "environment"})
_MOST_POINTS: Final = 10_000
"""Points of a counter; longer curves are thinned."""
_MOST_LANES: Final = 100
_ROUNDING_NS: Final = 2_000
"""Wall time in a double has steps of a quarter of a microsecond: neighbours may overlap by a few of them."""
_PIECE_BYTES: Final = 256 * 1024
_LOSS: Final = "train_loss"
_FOLDED: Final = "time since the last step record (s)"


def trace_of_folder(folder: Path) -> Iterator[bytes]:
    """Yield the trace of a run folder, all its sessions and ranks. Raises OSError if a record file cannot be read."""
    try:
        files = record_files(folder)
    except (LinkedRanks, NotADirectoryError):
        files = {0: rank_file(folder, 0)}
    return chrome_trace([(rank, records_of(path)) for rank, path in files.items()], name=folder.name)


def chrome_trace(files: Sequence[tuple[int, Iterable[Record]]], *, name: str = "run") -> Iterator[bytes]:
    """Yield the trace of the records of each rank as one strict-JSON object, in pieces of some hundred kilobytes.

    Its spans are in memory until it is written.
    """
    name = encodable(name)
    ranks = [_Rank(rank, records) for rank, records in files]
    base = min((rank.earliest for rank in ranks if rank.earliest is not None), default=0.0)
    tid = len(ranks) + 1
    for number, rank in enumerate(ranks, 1):
        # Unique across processes too: viewers rely on thread ids being unique.
        tid = rank.lay_out(base, number, tid)
    spans, skipped = sum(len(rank.bars) for rank in ranks), sum(rank.skipped for rank in ranks)
    about = {"run": name, "began": base, "spans": spans, "skipped": skipped}
    yield orjson.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1] + b',"traceEvents":[\n'
    piece = bytearray()
    for number, event in enumerate(event for rank in ranks for event in rank.events(name)):
        piece += (b",\n" if number else b"") + orjson.dumps(event)
        if len(piece) > _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)
    yield b"\n]}\n"


@dataclass(slots=True)
class _Bar:
    """A span, and where it is drawn."""

    span: Span
    end: float
    begin_ns: int = 0
    end_ns: int = 0
    tid: int = 0
    """0 for a span without a lane."""


class _Rank:
    """What the records of one rank have that a trace shows."""

    def __init__(self, rank: int, records: Iterable[Record]) -> None:
        self.rank = rank
        self.skipped = 0
        self.earliest: float | None = None
        self.bars: list[_Bar] = []
        self._of_id: dict[tuple[int, str], _Bar] = {}
        self._happened: list[tuple[float, Record]] = []
        self._steps: list[tuple[float, Mapping[str, Mapping[str, float]]]] = []
        self._base = 0.0
        self._tid = 0
        """Of what happened outside of spans."""
        self._threads: list[tuple[int, str]] = []
        self._read(records)

    def _read(self, records: Iterable[Record]) -> None:
        began: dict[tuple[int, str], _Bar] = {}
        heard: dict[int, float] = {}
        steps, every = 0, 1
        for record in records:
            event, timestamp = record.get("event"), seconds_in(record.get("time"))
            session = _session(record)
            if timestamp is not None:
                heard[session] = max(timestamp, heard.get(session, timestamp))
            if event in (SPAN, SPAN_START):
                self._add(read_span(record), began)
            elif event == STEP:
                steps += 1
                self._note(timestamp)
                if timestamp is not None and steps % every == 0:
                    self._steps.append((timestamp, _counters(record)))
                if len(self._steps) > _MOST_POINTS:
                    del self._steps[::2]
                    every *= 2
            # A file may have a list here, which is not hashable.
            elif isinstance(event, str) and (event in _HAPPENED or event == SPAN_EVENT):
                self._note(timestamp)
                if timestamp is not None:
                    self._happened.append((timestamp, record))
        for (session, _), bar in began.items():
            bar.end = max(bar.span.start, heard.get(session, bar.span.start))

    def _add(self, span: Span | None, began: dict[tuple[int, str], _Bar]) -> None:
        key = (0, "") if span is None else (span.session, span.id)
        if span is None or (span.duration is None and (not span.id or key in began)):
            self.skipped += 1
            return
        self._note(span.start)
        bar = began.pop(key, None) if span.id else None
        if bar is None:
            bar = _Bar(span, span.start)
            self.bars.append(bar)
        if span.duration is None:
            began[key] = bar
        else:
            # The record of its end has what was set until then; its thread is that of its start.
            bar.span = span._replace(thread=bar.span.thread, clock=bar.span.clock)
            bar.end = span.start + span.duration
        self._of_id[key] = bar

    def _note(self, timestamp: float | None) -> None:
        if timestamp is not None and (self.earliest is None or timestamp < self.earliest):
            self.earliest = timestamp

    def lay_out(self, base: float, tid: int, free: int) -> int:
        """Give each span a lane, the first of which is `free`; return the next free one.

        A viewer draws by nesting and drops what crosses the edge of another span, so such a span gets another lane.
        """
        self._base, self._tid = base, tid
        self._threads = [(tid, "what happened")]
        tracks = defaultdict(list)
        for bar in self.bars:
            bar.begin_ns, bar.end_ns = round((bar.span.start - base) * 1e9), round((bar.end - base) * 1e9)
            tracks[_track_of(bar.span)].append(bar)
        for track, bars in tracks.items():
            lanes: list[_Lane] = []
            # The longer of two that begin together first.
            for bar in sorted(bars, key=lambda bar: (bar.begin_ns, -bar.end_ns)):
                for number in range(_MOST_LANES):
                    if number == len(lanes):
                        lanes.append(_Lane())
                        label = track if number == 0 else f"{track} (parallel, {number + 1})"
                        self._threads.append((free + number, label))
                    if lanes[number].takes(bar):
                        bar.tid = free + number
                        break
                else:
                    self.skipped += 1
            free += len(lanes)
        return free

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the events of the trace."""
        process = {"ph": "M", "pid": self.rank + 1, "tid": 0, "ts": 0}
        yield {**process, "name": "process_name", "args": {"name": f"{name}, rank {self.rank}"}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": self.rank}}
        for tid, label in self._threads:
            yield {**process, "tid": tid, "name": "thread_name", "args": {"name": label}}
            yield {**process, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
        for bar in self.bars:
            if bar.tid:
                yield self._complete(bar)
        for timestamp, counters in self._steps:
            common = {"ph": "C", "pid": self.rank + 1, "tid": 0, "ts": self._microseconds(timestamp)}
            yield from ({**common, "name": shown, "args": args} for shown, args in counters.items())
        for timestamp, record in self._happened:
            event, tid = str(record.get("event")), self._tid
            if event == SPAN_EVENT:
                bar_around = self._of_id.get((_session(record), str(record.get("span_id"))))
                tid = (bar_around and bar_around.tid) or tid
            yield {
                "ph": "i",
                "s": "t",
                "name": str(record.get("name") or event) if event == SPAN_EVENT else event,
                "cat": event,
                "pid": self.rank + 1,
                "tid": tid,
                "ts": self._microseconds(timestamp),
                "args": {key: value for key, value in record.items() if key not in _LEFT_OUT},
            }

    def _complete(self, bar: _Bar) -> dict[str, Any]:
        span = bar.span
        args: dict[str, Any] = {"clock": span.clock, "session": span.session, "seconds": span.duration}
        if span.duration is None:
            args["no_end_written"] = args.pop("seconds") is None
        if span.step is not None:
            args["global_step"] = span.step
        for field_name in ("id", "parent_id", "kept", "error", "unfinished", "attributes"):
            value = getattr(span, field_name)
            if value:
                args[field_name] = value
        return {
            "ph": "X",
            "name": span.name,
            "cat": "error" if span.error else "span",
            "pid": self.rank + 1,
            "tid": bar.tid,
            "ts": bar.begin_ns / 1000,
            "dur": (bar.end_ns - bar.begin_ns) / 1000,
            "args": args,
        }

    def _microseconds(self, timestamp: float) -> float:
        return round((timestamp - self._base) * 1e9) / 1000


class _Lane:
    """A sequence of spans that nest or follow each other."""

    __slots__ = ("_ends", "_free_from")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._free_from = -(2**62)

    def takes(self, bar: _Bar) -> bool:
        """Draw a span here, moved by at most rounding; False if it crosses another. Longer ones come first."""
        while self._ends and self._ends[-1] <= bar.begin_ns + _ROUNDING_NS:
            self._free_from = max(self._free_from, self._ends.pop())
        begin = max(bar.begin_ns, self._free_from)
        end = max(begin, bar.end_ns)
        if self._ends:
            if end > self._ends[-1] + _ROUNDING_NS:
                return False
            end = min(end, self._ends[-1])
        self._ends.append(end)
        bar.begin_ns, bar.end_ns = begin, end
        return True


def _track_of(span: Span) -> str:
    """Return the track of a span: its thread, and whether it uses the device's clock."""
    thread = span.thread or "main"
    return f"{thread}, by the GPU's clock" if span.clock == DEVICE_CLOCK else thread


def _counters(record: Record) -> dict[str, dict[str, float]]:
    """Return the loss of a step, and the seconds of the spans that are added up in it."""
    loss = finite_in(record.get(_LOSS))
    folded = {
        name.removeprefix(TIME_PREFIX): spent
        for name, value in record.items()
        if name.startswith(TIME_PREFIX) and (spent := finite_in(value)) is not None
    }
    return ({} if loss is None else {_LOSS: {"value": loss}}) | ({_FOLDED: folded} if folded else {})


def _session(record: Record) -> int:
    value = record.get("session")
    return value if type(value) is int else 0
