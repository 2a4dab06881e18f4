"""Exports a run's spans as a Chrome trace, a JSON file for Perfetto and chrome://tracing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.telemetry.runfolder.codec import encodable
from toolkit.telemetry.runfolder.layout import LinkedRanks, rank_file
from toolkit.telemetry.runfolder.node_folders import record_files
from toolkit.telemetry.runfolder.reader import BadLine, BlockSource, Cursor, RecordFile, lines_of, parse_line
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

RankRecords = tuple[int, Iterable[Record]]
"""A rank and its records in file order; a second iteration gives the same records."""

TRACE_BEGINS: Final = b'{"displayTimeUnit":"ms","otherData":{"run":'
_HAPPENED: Final = frozenset({START, END, CHECKPOINT, SAMPLE, EPOCH, FINDING, ERROR, CONTROL_CHANGE})
_LEFT_OUT: Final = frozenset({*ENVELOPE, "config", "environment"})
_MOST_POINTS: Final = 10_000
"""Points of a counter; longer curves are thinned."""
_MOST_LANES: Final = 100
_ROUNDING_NS: Final = 2_000
"""Wall time in a double has steps of a quarter of a microsecond: neighbours may overlap by a few of them."""
_PIECE_BYTES: Final = 256 * 1024
_READ_BYTES: Final = 2 * 1024 * 1024
_LOSS: Final = "train_loss"
_FOLDED: Final = "time since the last step record (s)"


def trace_of_folder(folder: Path) -> Iterator[bytes]:
    """Yield the trace of a run folder; see `trace_of_run`."""
    try:
        files = record_files(folder)
    except (LinkedRanks, NotADirectoryError):
        files = {0: rank_file(folder, 0)}
    return trace_of_run([(rank, RecordFile(path)) for rank, path in files.items()], name=folder.name)


def trace_of_run(ranks: Sequence[tuple[int, BlockSource]], *, name: str) -> Iterator[bytes]:
    """Yield the trace of a run, all its sessions and ranks, in pieces of some hundred kilobytes.

    Raises:
        OSError: a record file cannot be read.
    """
    return chrome_trace([(rank, _Records(source)) for rank, source in ranks], name=name)


def chrome_trace(files: Sequence[RankRecords], *, name: str = "run") -> Iterator[bytes]:
    """Yield the trace of `files` as one strict-JSON object, in pieces.

    The records are gone through twice: once for where everything lies, once to write it out. In memory are only times.
    """
    name = encodable(name)
    plan = _Plan()
    for rank, records in files:
        plan.look_at(rank, records)
    plan.lay_out()
    about = {"run": name, "began": plan.base_s, "spans": len(plan.tid), "skipped": plan.skipped}
    yield orjson.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1] + b',"traceEvents":[\n'
    piece = bytearray()
    for number, event in enumerate(_events(plan, files, name)):
        if number:
            piece += b",\n"
        piece += orjson.dumps(event)
        if len(piece) > _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)
    yield b"\n]}\n"


# ---------------------------------------------------------------- lanes


class _Numbering:
    """Numbers the spans of a file, identically in each pass."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.open: dict[tuple[int, str], int] = {}
        self.begun: dict[int, Span] = {}
        """The spans without an end so far, by their number."""

    def read(self, record: Record) -> tuple[int, Span] | None:
        """Return the span in a record, with its number, shared by its start and end; None if it is unusable."""
        span = read_span(record)
        if span is None:
            return None
        key = (span.session, span.id)
        if span.duration is not None:
            begun = self.open.pop(key, None) if span.id else None
            if begun is not None:
                del self.begun[begun]
                return begun, span
        elif not span.id or key in self.open:
            return None
        else:
            self.open[key] = self.next
            self.begun[self.next] = span
        self.next += 1
        return self.next - 1, span


class _Plan:
    """Times and lanes of all spans, from the first pass."""

    def __init__(self) -> None:
        self.skipped = 0
        self.base_s = 0.0
        self.start = array("d")
        self.end = array("d")
        self.begin_ns = array("q")
        self.end_ns = array("q")
        self.tid = array("q")
        """0 for a span without a lane."""
        self.first_row: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.inside: dict[tuple[int, int, str], int] = {}
        """Rank, session and id of spans with events, and their numbers."""
        self.happened_tid: dict[int, int] = {}
        """By rank, the lane of events outside spans."""
        self.threads: list[tuple[int, int, str]] = []
        """Rank, tid and name of each lane."""
        self._tracks: dict[tuple[int, str], array[int]] = {}
        """By rank and label, the spans of one thread and clock."""
        self._earliest: float | None = None

    def look_at(self, rank: int, records: Iterable[Record]) -> None:
        """Read the records of one rank."""
        self.first_row[rank] = len(self.start)
        numbers = _Numbering(len(self.start))
        wanted: set[tuple[int, str]] = set()
        heard: dict[int, float] = {}
        steps = 0
        for record in records:
            event, timestamp = record.get("event"), seconds_in(record.get("time"))
            session = _session(record)
            if timestamp is not None:
                heard[session] = max(timestamp, heard.get(session, timestamp))
            if event in (SPAN, SPAN_START):
                self._add(rank, numbers.read(record), wanted)
            elif event == SPAN_EVENT:
                key = (session, str(record.get("span_id")))
                if key in numbers.open:
                    self.inside[(rank, *key)] = numbers.open[key]
                else:
                    wanted.add(key)
            elif event == STEP:
                steps += 1
            # A file may have a list here, which is not hashable.
            if isinstance(event, str) and (event in _HAPPENED or event in (SPAN_EVENT, STEP)):
                self._note(timestamp)
        for row, span in numbers.begun.items():
            self.end[row] = max(span.start, heard.get(span.session, span.start))
        self.steps[rank] = steps

    def _add(self, rank: int, found: tuple[int, Span] | None, wanted: set[tuple[int, str]]) -> None:
        if found is None:
            self.skipped += 1
            return
        row, span = found
        if row == len(self.start):
            self.start.append(span.start)
            self.end.append(span.start)
            self._tracks.setdefault((rank, _track_of(span)), array("q")).append(row)
        self._note(span.start)
        if span.duration is not None:
            self.start[row], self.end[row] = span.start, span.start + span.duration
        if (span.session, span.id) in wanted:
            self.inside[rank, span.session, span.id] = row

    def _note(self, timestamp: float | None) -> None:
        if timestamp is not None and (self._earliest is None or timestamp < self._earliest):
            self._earliest = timestamp

    def lay_out(self) -> None:
        """Assign a lane to every span, and make times relative to the start of the run."""
        self.base_s = self._earliest or 0.0
        base = self.base_s
        self.begin_ns = array("q", (round((timestamp - base) * 1e9) for timestamp in self.start))
        self.end_ns = array("q", (round((timestamp - base) * 1e9) for timestamp in self.end))
        self.tid = array("q", bytes(8 * len(self.start)))
        # Unique across processes too: viewers rely on thread ids being unique.
        self.happened_tid = {rank: number for number, rank in enumerate(self.first_row, 1)}
        self.threads = [(rank, tid, "what happened") for rank, tid in self.happened_tid.items()]
        for (rank, track), rows in self._tracks.items():
            first = len(self.threads) + 1
            for lane in range(self._fill(rows, first)):
                label = track if lane == 0 else f"{track} (parallel, {lane + 1})"
                self.threads.append((rank, first + lane, label))

    def _fill(self, spans: array[int], first_tid: int) -> int:
        """Put the spans of a track into lanes and return how many that took.

        A viewer draws by nesting and drops what crosses the edge of another span, so such a span gets another lane.
        """
        begin, end = self.begin_ns, self.end_ns
        lanes: list[_Lane] = []
        # The longer of two that begin together first. Twice by one number takes a third of the memory of once by two.
        rows = sorted(spans, key=end.__getitem__, reverse=True)
        rows.sort(key=begin.__getitem__)
        for row in rows:
            for number in range(_MOST_LANES):
                if number == len(lanes):
                    lanes.append(_Lane())
                place = lanes[number].place(begin[row], end[row])
                if place is not None:
                    begin[row], end[row] = place
                    self.tid[row] = first_tid + number
                    break
            else:
                self.skipped += 1
        return len(lanes)


class _Lane:
    """A sequence of spans that nest or follow each other."""

    __slots__ = ("_ends", "_free_from")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._free_from = -(2**62)

    def place(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the times of a span, moved by at most rounding; None if it crosses another. Longer ones come first."""
        while self._ends and self._ends[-1] <= begin + _ROUNDING_NS:
            self._free_from = max(self._free_from, self._ends.pop())
        begin = max(begin, self._free_from)
        end = max(begin, end)
        if self._ends:
            around = self._ends[-1]
            if end > around + _ROUNDING_NS:
                return None
            end = min(end, around)
        self._ends.append(end)
        return begin, end


def _track_of(span: Span) -> str:
    """Return the track of a span: its thread, and whether it uses the device's clock."""
    thread = span.thread or "main"
    return f"{thread}, by the GPU's clock" if span.clock == DEVICE_CLOCK else thread


# ---------------------------------------------------------------- output


def _events(plan: _Plan, files: Sequence[RankRecords], name: str) -> Iterator[dict[str, Any]]:
    for rank, _ in files:
        process = {"ph": "M", "pid": rank + 1, "tid": 0, "ts": 0}
        yield {**process, "name": "process_name", "args": {"name": f"{name}, rank {rank}"}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": rank}}
        for of_rank, tid, label in plan.threads:
            if of_rank != rank:
                continue
            yield {**process, "tid": tid, "name": "thread_name", "args": {"name": label}}
            yield {**process, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
    for rank, records in files:
        yield from _events_of_rank(plan, rank, records)


def _events_of_rank(plan: _Plan, rank: int, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    numbers = _Numbering(plan.first_row[rank])
    every = -(-plan.steps[rank] // _MOST_POINTS) or 1
    steps = 0
    for record in records:
        event = record.get("event")
        if event in (SPAN, SPAN_START):
            found = numbers.read(record)
            if found is not None and found[1].duration is not None:
                yield from _complete(plan, rank, *found)
        elif event == STEP:
            steps += 1
            if steps % every == 0:
                yield from _counters(plan, rank, record)
        elif event == SPAN_EVENT:
            yield from _inside(plan, rank, record)
        elif isinstance(event, str) and event in _HAPPENED:
            yield from _instant(plan, rank, plan.happened_tid[rank], str(event), record)
    for row, span in numbers.begun.items():
        yield from _complete(plan, rank, row, span)


def _complete(plan: _Plan, rank: int, row: int, span: Span) -> Iterator[dict[str, Any]]:
    if not plan.tid[row]:
        return
    args: dict[str, Any] = {"clock": span.clock, "session": span.session}
    if span.duration is not None:
        args["seconds"] = span.duration
    else:
        args["no_end_written"] = True
    if span.step is not None:
        args["global_step"] = span.step
    for field_name in ("id", "parent_id", "kept", "error"):
        value = getattr(span, field_name)
        if value:
            args[field_name] = value
    if span.unfinished:
        args["unfinished"] = True
    if span.attributes:
        args["attributes"] = span.attributes
    begin, end = plan.begin_ns[row], plan.end_ns[row]
    yield {
        "ph": "X",
        "name": span.name,
        "cat": "error" if span.error else "span",
        "pid": rank + 1,
        "tid": plan.tid[row],
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "args": args,
    }


def _counters(plan: _Plan, rank: int, record: Record) -> Iterator[dict[str, Any]]:
    timestamp = seconds_in(record.get("time"))
    if timestamp is None:
        return
    common = {"ph": "C", "pid": rank + 1, "tid": 0, "ts": _microseconds(plan, timestamp)}
    loss = finite_in(record.get(_LOSS))
    if loss is not None:
        yield {**common, "name": _LOSS, "args": {"value": loss}}
    folded = {
        name.removeprefix(TIME_PREFIX): spent
        for name, value in record.items()
        if name.startswith(TIME_PREFIX) and (spent := finite_in(value)) is not None
    }
    if folded:
        yield {**common, "name": _FOLDED, "args": folded}


def _inside(plan: _Plan, rank: int, record: Record) -> Iterator[dict[str, Any]]:
    row = plan.inside.get((rank, _session(record), str(record.get("span_id"))))
    tid = plan.tid[row] if row is not None else 0
    name = str(record.get("name") or SPAN_EVENT)
    yield from _instant(plan, rank, tid or plan.happened_tid[rank], name, record)


def _instant(plan: _Plan, rank: int, tid: int, name: str, record: Record) -> Iterator[dict[str, Any]]:
    timestamp = seconds_in(record.get("time"))
    if timestamp is None:
        return
    yield {
        "ph": "i",
        "s": "t",
        "name": name,
        "cat": str(record.get("event")),
        "pid": rank + 1,
        "tid": tid,
        "ts": _microseconds(plan, timestamp),
        "args": {key: value for key, value in record.items() if key not in _LEFT_OUT},
    }


def _microseconds(plan: _Plan, timestamp: float) -> float:
    return round((timestamp - plan.base_s) * 1e9) / 1000


def _session(record: Record) -> int:
    value = record.get("session")
    return value if type(value) is int else 0


class _Records:
    """The records of a file, up to its size at the first pass: a live run may append more."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._end: int | None = None

    def __iter__(self) -> Iterator[Record]:
        cursor = Cursor()
        while self._end is None or cursor.offset < self._end:
            block = self._source.read_block(cursor, max_bytes=_READ_BYTES)
            if block.cursor == cursor or (block.replaced and cursor.offset):
                break
            cursor = block.cursor
            for position, line in lines_of(block):
                if self._end is not None and position >= self._end:
                    break
                record = parse_line(position, line)
                if not isinstance(record, BadLine):
                    yield record
        self._end = cursor.offset if self._end is None else self._end
