"""Finds the completions of one record file: the newest first, those appended meanwhile before older ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolkit.telemetry.runfolder.records import COMPLETION, COMPLETIONS_DROPPED, Record
from toolkit.telemetry.runs.columns.column_queries import ColumnQueries
from toolkit.telemetry.runs.columns.run_columns import RunColumns
from toolkit.telemetry.runs.completions import (
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
from toolkit.telemetry.runs.growable_array import GrowableArray

_MAX_SEARCHES: Final = 8
_MAX_DROPS: Final = 100_000
_RECORDS_AT_ONCE: Final = 50
"""Records read between two checks of the clock."""
_ROW: Final = np.dtype([("step", "f8"), ("reward", "f8"), ("has_reward", "?"), ("prompt", "i8")])

Places = npt.NDArray[np.int64]


class CompletionReader:
    """Reads the completions at the places that a log has found. Thread-safe.

    Only a few numbers of each completion are kept; its texts are read again when shown or searched.
    """

    def __init__(self, log: ColumnQueries) -> None:
        self.log = log
        self._lock = threading.Lock()
        self._columns: RunColumns | None = None
        self._forget()

    def _forget(self) -> None:
        self._starts: Places = np.empty(0, dtype=np.int64)
        self._lengths: Places = self._starts
        self._rows: GrowableArray[Any] = GrowableArray(np.empty(0, dtype=_ROW))
        self._read = _Done()
        self._drops: dict[tuple[str, str, str], int] = {}
        self._drops_read = 0
        self._searches: dict[str, _Search] = {}

    def find(
        self, query: CompletionQuery, *, first: int = 0, count: int = 50, wait_s: float = 0.3
    ) -> FoundCompletions:
        """Return what `query` finds so far, after reading for at most about `wait_s`."""
        until = time.perf_counter() + wait_s
        health = self.log.refresh(wait_s)
        with self._lock:
            try:
                self._read_numbers(until - wait_s / 2 if query.text.strip() else until)
                chosen, searched = self._choose(query, until)
                wanted = chosen[first : first + count]
                records = self._records(wanted)
            except OSError:
                # The page header shows why the file cannot be read.
                return FoundCompletions()
            rows = [
                completion_of(record, int(self._starts[row]))
                for row, record in zip(wanted.tolist(), records, strict=True)
                if record is not None
            ]
            return FoundCompletions(
                rows=tuple(rows),
                matching=len(chosen),
                known=self._read.high - self._read.low,
                fraction_read=health.fraction_read * self._read.fraction(len(self._starts)),
                fraction_searched=searched,
                dropped=sum(self._drops.values()),
            )

    def at(self, place: int) -> Completion | None:
        """Return the completion whose record starts there; None if there is none."""
        starts, lengths, _ = self.log.places_of((COMPLETION,))[1]
        row = int(np.searchsorted(starts, place)) if 0 <= place < 2**62 else len(starts)
        if row == len(starts) or starts[row] != place:
            return None
        record = self.log.records_at([(place, int(lengths[row]))])[0]
        return completion_of(record, place) if record is not None else None

    def siblings(self, completion: Completion, *, limit: int = 200) -> Sequence[Sibling]:
        """Return the other completions of the same prompt, newest first."""
        if not completion.prompt:
            return ()
        with self._lock:
            rows, starts = self._rows.values, self._starts
            known = self._read.newest_first()
            known = known[rows["prompt"][known] == hash(completion.prompt)]
        return [
            Sibling(
                place=int(starts[row]),
                step=None if np.isnan(rows["step"][row]) else int(rows["step"][row]),
                reward=float(rows["reward"][row]) if rows["has_reward"][row] else None,
            )
            for row in known[starts[known] != completion.place][:limit]
        ]

    def _read_numbers(self, until: float) -> None:
        """Read what a list sorts by, from completions that were not read yet."""
        columns, (self._starts, self._lengths, _) = self.log.places_of((COMPLETION,))
        if columns is not self._columns:
            # The file was replaced, or loaded from the cache: offsets changed.
            starts, lengths = self._starts, self._lengths
            self._forget()
            self._columns, self._starts, self._lengths = columns, starts, lengths
        self._rows.append(np.zeros(len(self._starts) - len(self._rows), dtype=_ROW))
        for part in self._read.parts(len(self._starts), until):
            for row, record in zip(part.tolist(), self._records(part), strict=True):
                self._rows.overwrite(row, row + 1, _numbers(record or {}))
        self._read_drops(until)

    def _read_drops(self, until: float) -> None:
        """Keep the newest count of completions that were not recorded, by session, split and first step."""
        starts, lengths, _ = self.log.places_of((COMPLETIONS_DROPPED,))[1]
        while self._drops_read < len(starts):
            some = slice(self._drops_read, self._drops_read + _RECORDS_AT_ONCE)
            places = list(zip(starts[some].tolist(), lengths[some].tolist(), strict=True))
            for record in self.log.read_records(places):
                dropped = (record or {}).get("dropped")
                if record is not None and isinstance(dropped, int) and len(self._drops) < _MAX_DROPS:
                    key = (str(record.get("session")), str(record.get("split")), str(record.get("from_step")))
                    self._drops[key] = max(0, dropped)
            self._drops_read += len(places)
            if time.perf_counter() >= until:
                return

    def _choose(self, query: CompletionQuery, until: float) -> tuple[Places, float]:
        """Return the rows that `query` finds, in its order, and the fraction that has been searched."""
        rows = self._read.newest_first()
        if query.steps is not None:
            steps = self._rows.values["step"][rows]
            rows = rows[(steps >= query.steps[0]) & (steps <= query.steps[1])]
        searched = 1.0
        text = query.text.strip().casefold()
        if text:
            search = self._search_for(text)
            for part in search.done.parts(len(self._starts), until):
                for row, record in zip(part.tolist(), self._records(part), strict=True):
                    if record is not None and _contains(record, text):
                        search.found.append(row)
            rows = rows[np.isin(rows, search.found)]
            searched = search.done.fraction(len(self._starts))
        if query.sort != "Newest":
            reward = np.where(self._rows.values["has_reward"], self._rows.values["reward"], np.nan)[rows]
            # NaN comes last in either order.
            rows = rows[np.argsort(-reward if query.sort == "Highest reward" else reward, kind="stable")]
        return rows, searched

    def _search_for(self, text: str) -> _Search:
        # Most recently used last.
        search = self._searches.pop(text) if text in self._searches else _Search()
        self._searches[text] = search
        if len(self._searches) > _MAX_SEARCHES:
            del self._searches[next(iter(self._searches))]
        return search

    def _records(self, rows: Places) -> Sequence[Record | None]:
        places = zip(self._starts[rows].tolist(), self._lengths[rows].tolist(), strict=True)
        found = self.log.read_records(list(places))
        # Another file may have taken its place since.
        return [one if one is not None and one.get("event") == COMPLETION else None for one in found]


class _Done:
    """The rows from `low` to `high` are done: new rows come first, then older ones, newest first."""

    def __init__(self) -> None:
        self.low = self.high = -1

    def parts(self, count: int, until: float) -> Iterator[Places]:
        """Yield rows to do next until the time is up; they are done when the next ones are asked for."""
        if self.high < 0:
            self.low = self.high = count
        while self.low > 0 or self.high < count:
            if self.high < count:
                low, high = self.high, min(count, self.high + _RECORDS_AT_ONCE)
            else:
                low, high = max(0, self.low - _RECORDS_AT_ONCE), self.low
            yield np.arange(low, high)
            self.low, self.high = min(self.low, low), max(self.high, high)
            if time.perf_counter() >= until:
                return

    def newest_first(self) -> Places:
        return np.arange(self.low, self.high)[::-1]

    def fraction(self, count: int) -> float:
        return (self.high - self.low) / count if count else 1.0


class _Search:
    """Which rows have a text, among those that were searched."""

    def __init__(self) -> None:
        self.done = _Done()
        self.found: list[int] = []


def _numbers(record: Record) -> tuple[float, float, bool, int]:
    step, reward = step_of(record), reward_of(record)[1]
    prompt = hash(text_in(record.get("prompt")))
    return np.nan if step is None else step, 0.0 if reward is None else reward, reward is not None, prompt


def _contains(record: Record, text: str) -> bool:
    return any(text in text_in(record.get(name)).casefold() for name in ("prompt", *ANSWERS, "text"))
