"""Finds the completions in one record file, newest first, including those appended meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.runfolder.codec import with_non_finite
from toolkit.runfolder.reader import BadLine, Cursor, parse_line
from toolkit.runfolder.records import COMPLETION, COMPLETIONS_DROPPED, Record
from toolkit.runs.completions import (
    ANSWERS,
    Completion,
    CompletionQuery,
    FoundCompletions,
    Sibling,
    completion_of,
    reward_of,
    step_of,
    text_in,
)
from toolkit.runs.growable_array import GrowableArray
from toolkit.runs.record_source import Place, RecordSource

_NEEDLE: Final = b'"completion'
_APPENDED_BYTES: Final = 1024 * 1024
_MAX_SEARCHES: Final = 8
_MAX_DROPS: Final = 100_000
_ROWS_AT_ONCE: Final = 50
"""Records searched between two checks of the clock."""

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class CompletionReader:
    """Reads one record file backwards. Thread-safe.

    Only a few numbers of each completion are kept; its texts are read again when shown or searched.
    """

    def __init__(self, source: RecordSource) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._cursor: Cursor | None = None
        """Where appended records will start."""
        self._unread = 0
        """Bytes at the start of the file that have not been read yet."""
        self._appended = _Rows()
        self._earlier = _Rows()
        """Newest first, as they are read."""
        self._drops: dict[tuple[Any, Any, Any], int] = {}
        self._searches: dict[str, _Search] = {}
        self._all: tuple[int, _Columns] = (-1, _Columns())

    @property
    def nbytes(self) -> int:
        """Memory used."""
        return self._appended.nbytes + self._earlier.nbytes

    # ------------------------------------------------------------ queries

    def find(
        self, query: CompletionQuery, *, first: int = 0, count: int = 50, wait_s: float = 0.3
    ) -> FoundCompletions:
        """Return what `query` finds so far, after reading for at most about `wait_s`."""
        until = time.perf_counter() + wait_s
        with self._lock:
            try:
                return self._find(query, slice(first, first + count), until, wait_s)
            except (OSError, ValueError):
                # The page header shows why the file cannot be read.
                self._forget()
                return FoundCompletions()

    def _find(self, query: CompletionQuery, wanted: slice, until: float, wait_s: float) -> FoundCompletions:
        # Half of the time for reading, half for searching what has been read.
        part = self._read_on(until - wait_s / 2 if query.text.strip() else until)
        columns = self._columns()
        chosen, searched = self._choose(columns, query, until)
        places = columns.places(chosen[wanted])
        lines = self.source.read_at(places)
        rows = [_completion_in(line, place) for (place, _), line in zip(places, lines, strict=True)]
        return FoundCompletions(
            rows=tuple(row for row in rows if row is not None),
            matching=len(chosen),
            known=len(columns.place),
            fraction_read=part,
            fraction_searched=searched,
            dropped=sum(self._drops.values()),
        )

    def at(self, place: int) -> Completion | None:
        """Return the completion whose record starts there; None if there is none."""
        try:
            line = self.source.line_at(place)
        except (OSError, ValueError):
            return None
        return _completion_in(line, place) if line is not None else None

    def siblings(self, completion: Completion, *, limit: int = 200) -> Sequence[Sibling]:
        """Return the other completions of the same prompt, newest first."""
        if not completion.prompt:
            return ()
        with self._lock:
            columns = self._columns()
        same = (columns.prompt == _hash_of(completion.prompt)) & (columns.place != completion.place)
        return [
            Sibling(
                place=int(columns.place[row]),
                step=_whole(columns.step[row]),
                reward=float(columns.reward[row]) if columns.has_reward[row] else None,
            )
            for row in np.flatnonzero(same)[:limit]
        ]

    def _choose(self, columns: _Columns, query: CompletionQuery, until: float) -> tuple[Places, float]:
        """Return the rows that `query` finds, in its order, and the fraction that has been searched."""
        wanted = np.ones(len(columns.place), dtype=bool)
        if query.steps is not None:
            low, high = query.steps
            wanted &= (columns.step >= low) & (columns.step <= high)
        searched = 1.0
        text = query.text.strip().casefold()
        if text:
            search = self._search_for(text)
            searched = search.advance(self.source, columns, until)
            wanted &= np.isin(columns.place, search.found())
        rows = np.flatnonzero(wanted)
        if query.sort != "Newest":
            reward = columns.reward[rows]
            # NaN comes last in either order.
            rows = rows[np.argsort(-reward if query.sort == "Highest reward" else reward, kind="stable")]
        return rows, searched

    def _search_for(self, text: str) -> _Search:
        search = self._searches.pop(text, None) or _Search(text)
        # Most recently used last.
        self._searches[text] = search
        if len(self._searches) > _MAX_SEARCHES:
            del self._searches[next(iter(self._searches))]
        return search

    def _columns(self) -> _Columns:
        """Return all rows, newest first."""
        count = len(self._appended) + len(self._earlier)
        if self._all[0] != count:
            self._all = (count, _Columns.of(self._appended, self._earlier))
        return self._all[1]

    # ------------------------------------------------------------ reading

    def _read_on(self, until: float) -> float:
        """Read new records, then backwards until the time is up; return the fraction that has been read."""
        if self._cursor is None:
            self._begin()
        if not self._read_appended(until):
            self._forget()
            self._begin()
        while self._unread > 0:
            block = self.source.read_before(self._unread)
            self._unread = block.next_end
            found = list(_completions_in(block.data, block.start))
            self._earlier.add(reversed([row for row in found if row.event == COMPLETION]))
            self._count_drops(reversed([row for row in found if row.event != COMPLETION]), is_newer=False)
            if time.perf_counter() >= until:
                break
        size = self._cursor.offset if self._cursor is not None else 0
        return 1.0 - self._unread / size if size else 1.0

    def _begin(self) -> None:
        """Start at the current end of the file."""
        self._cursor = self.source.end()
        self._unread = self._cursor.offset

    def _read_appended(self, until: float) -> bool:
        """Read new records; False if the file was replaced."""
        while self._cursor is not None:
            try:
                block = self.source.read_block(self._cursor, max_bytes=_APPENDED_BYTES)
            except OSError:
                return True
            if block.replaced:
                return False
            moved = block.cursor.offset > self._cursor.offset
            self._cursor = block.cursor
            found = list(_completions_in(block.data, block.start))
            self._appended.add(row for row in found if row.event == COMPLETION)
            self._count_drops((row for row in found if row.event != COMPLETION), is_newer=True)
            if not moved or not block.pending_bytes or time.perf_counter() >= until:
                break
        return True

    def _count_drops(self, rows: Iterable[_Row], *, is_newer: bool) -> None:
        """Keep the newest count of completions that were not recorded, by session, split and first step."""
        for row in rows:
            about = row.record
            key = (str(about.get("session")), str(about.get("split")), str(about.get("from_step")))
            dropped = about.get("dropped")
            if not isinstance(dropped, int) or len(self._drops) >= _MAX_DROPS:
                continue
            if is_newer or key not in self._drops:
                self._drops[key] = max(0, dropped)


@dataclass(frozen=True, slots=True)
class _Row:
    event: str
    place: int
    length: int
    record: Record


class _Rows:
    """Completions in the order in which they were added: offset, length and sort keys."""

    def __init__(self) -> None:
        self.place: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self.length: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))
        self.step: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.reward: GrowableArray[np.float64] = GrowableArray(np.empty(0))
        self.has_reward: GrowableArray[np.bool_] = GrowableArray(np.empty(0, dtype=bool))
        self.prompt: GrowableArray[np.int64] = GrowableArray(np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.place, self.length, self.step, self.reward, self.prompt))

    def add(self, rows: Iterable[_Row]) -> None:
        found = list(rows)
        if not found:
            return
        records = [with_non_finite(row.record) for row in found]
        steps = [step_of(record) for record in records]
        rewards = [reward_of(record)[1] for record in records]
        self.place.append(np.array([row.place for row in found], dtype=np.int64))
        self.length.append(np.array([row.length for row in found], dtype=np.int64))
        self.step.append(np.array([np.nan if step is None else float(step) for step in steps]))
        self.reward.append(np.array([np.nan if reward is None else reward for reward in rewards]))
        self.has_reward.append(np.array([reward is not None for reward in rewards], dtype=bool))
        prompts = [_hash_of(text_in(record.get("prompt"))) for record in records]
        self.prompt.append(np.array(prompts, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class _Columns:
    """All completions read so far, newest first."""

    place: Places = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    length: Places = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    step: Floats = field(default_factory=lambda: np.empty(0))
    reward: Floats = field(default_factory=lambda: np.empty(0))
    has_reward: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    prompt: Places = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def of(cls, appended: _Rows, earlier: _Rows) -> _Columns:
        def joined(name: str) -> Any:
            return np.concatenate((getattr(appended, name).values[::-1], getattr(earlier, name).values))

        return cls(*(joined(name) for name in ("place", "length", "step", "reward", "has_reward", "prompt")))

    def places(self, rows: Places) -> list[Place]:
        """Return where the lines of `rows` are."""
        return list(zip(self.place[rows].tolist(), self.length[rows].tolist(), strict=True))


class _Search:
    """Finds a text, from the newest completion towards the oldest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: list[int] = []
        self._low = self._high = -1
        """Everything between these offsets has been searched."""

    def found(self) -> Places:
        return np.array(self._places, dtype=np.int64)

    def advance(self, source: RecordSource, columns: _Columns, until: float) -> float:
        """Search until the time is up; return the fraction that has been searched."""
        place = columns.place
        if not len(place):
            return 1.0
        if self._low < 0:
            self._low = self._high = int(place[0]) + 1
        # Oldest first, so that the searched range has no gaps.
        newer = np.flatnonzero(place >= self._high)[::-1]
        for some in _batches(newer):
            self._search_in(source, columns.places(some))
            self._high = int(place[some[-1]]) + 1
            if time.perf_counter() >= until:
                break
        for some in _batches(np.flatnonzero(place < self._low)):
            self._search_in(source, columns.places(some))
            self._low = int(place[some[-1]])
            if time.perf_counter() >= until:
                break
        searched = np.count_nonzero((place >= self._low) & (place < self._high))
        return searched / len(place)

    def _search_in(self, source: RecordSource, places: list[Place]) -> None:
        for (place, _), line in zip(places, source.read_at(places), strict=True):
            found = parse_line(place, line)
            if isinstance(found, BadLine):
                continue
            if any(
                self._text in text_in(found.get(name)).casefold() for name in ("prompt", *ANSWERS, "text")
            ):
                self._places.append(place)


def _batches(rows: Places) -> Iterator[Places]:
    return (rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE))


def _completions_in(data: bytes, start: int) -> Iterator[_Row]:
    """Yield completions and drop counts from whole lines that start at `start` in the file."""
    at = data.find(_NEEDLE)
    while at >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        if end < 0:
            end = len(data)
        found = parse_line(start + begin, data[begin:end])
        if not isinstance(found, BadLine):
            event = found.get("event")
            if event in (COMPLETION, COMPLETIONS_DROPPED):
                yield _Row(event, start + begin, end - begin, found)
        at = data.find(_NEEDLE, end)


def _completion_in(line: bytes, place: int) -> Completion | None:
    found = parse_line(place, line)
    if isinstance(found, BadLine) or found.get("event") != COMPLETION:
        return None
    return completion_of(found, place)


def _hash_of(prompt: str) -> int:
    return hash(prompt)


def _whole(step: float) -> int | None:
    return None if np.isnan(step) else int(step)
