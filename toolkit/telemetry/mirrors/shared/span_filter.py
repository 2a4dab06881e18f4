"""Selects the spans that are exported, and gives the children of the others a new parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from toolkit.telemetry.core.checks import only_or_except, texts
from toolkit.telemetry.runfolder.records import SPAN, SPAN_EVENT, SPAN_START, Record
from toolkit.telemetry.timing.names import ONE_LOGGER_NAMES

_NAMES_KEPT: Final = 10_000
_DEEPEST: Final = 1_000


class SpanFilter:
    """Chooses spans by their name: those of `only`, if any are given, and none of `except_`.

    A name may be ours (`forward`) or OneLogger's (`model_forward`), and `*` matches any characters.
    """

    def __init__(self, only: Sequence[str] = (), except_: Sequence[str] = ()) -> None:
        self.only = tuple(only)
        self.except_ = tuple(except_)
        self.takes: Callable[[str], bool] = lru_cache(_NAMES_KEPT)(self._takes)
        """Whether spans of a name are exported."""

    @property
    def takes_all(self) -> bool:
        """Whether all spans are exported."""
        return not self.only and not self.except_

    def _takes(self, name: str) -> bool:
        return (not self.only or _matches(name, self.only)) and not _matches(name, self.except_)


def span_filter_from(given: Mapping[str, Any] | None) -> SpanFilter:
    """Return the filter of an `export_spans` block: `{only: […]}`, `{except: […]}` or nothing.

    Raises:
        OptionsError: it is something else.
    """
    names = {key: texts(key, value) for key, value in only_or_except("export_spans", given or {}).items()}
    return SpanFilter(only=names.get("only", ()), except_=names.get("except", ()))


class SpanSelection:
    """Selects the records of the spans that one exporter sends.

    The child of an omitted span gets the nearest exported ancestor as its parent, if the omitted one was announced: a
    span that takes less than a second is written after its children, which keep its id as their parent's.
    """

    def __init__(self, span_filter: SpanFilter | None = None) -> None:
        self._filter = span_filter or SpanFilter()
        self._last_seq = -1
        self._open: dict[str, tuple[bool, str | None]] = {}
        """Whether each announced span is exported, and its parent."""

    def take(self, batch: Sequence[Record]) -> list[Record]:
        """Return the records of `batch` that were not taken before, without those of omitted spans."""
        found: list[Record] = []
        for record in batch:
            seq, event = record.get("seq"), record.get("event")
            if not isinstance(seq, int) or seq <= self._last_seq:
                continue
            self._last_seq = seq
            if event not in _OF_SPANS:
                found.append(record)
            elif _is_sound(record):
                is_taken = self._filter.takes(record["span" if event == SPAN_EVENT else "name"])
                if event == SPAN_START:
                    self._open[record["id"]] = is_taken, record.get("parent_id")
                elif event == SPAN:
                    self._open.pop(record["id"], None)
                if is_taken:
                    found.append(record if self._filter.takes_all else self._below_an_exported_one(record))
        return [one for one in found if one.get("event") != SPAN_EVENT or one.get("span_id") is not None]

    def _below_an_exported_one(self, record: Record) -> Record:
        # The span of an event may have another one's id, if it is only added up.
        key = "span_id" if record["event"] == SPAN_EVENT else "parent_id"
        return {**record, key: self._exported(record.get(key))}

    def _exported(self, span_id: str | None) -> str | None:
        """Return the nearest span from `span_id` upwards that is not known to be omitted."""
        for _ in range(_DEEPEST):
            is_taken, parent_id = self._open.get(span_id, (True, None)) if span_id else (True, None)
            if is_taken:
                return span_id
            span_id = parent_id
        return None


_OF_SPANS: Final = (SPAN, SPAN_START, SPAN_EVENT)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    theirs = ONE_LOGGER_NAMES.get(name, name)
    return any(fnmatchcase(name, pattern) or fnmatchcase(theirs, pattern) for pattern in patterns)


def _is_sound(record: Record) -> bool:
    """Return whether a record has the fields of a span or its event: a script may write records of any kind."""
    if record["event"] == SPAN_EVENT:
        needed: tuple[tuple[str, Any], ...] = (("span_id", str), ("span", str), ("name", str))
    elif record["event"] == SPAN_START:
        needed = (("id", str), ("name", str), ("start", int | float))
    else:
        needed = (("id", str), ("name", str), ("start", int | float), ("duration", int | float))
    return isinstance(record.get("time"), int | float) and all(
        isinstance(record.get(name), kind) for name, kind in needed
    )
