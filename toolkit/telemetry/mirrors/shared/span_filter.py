"""Selects the spans that are exported, and gives the children of the others a new parent."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.checks import only_or_except, texts
from toolkit.telemetry.runfolder.records import SPAN, SPAN_EVENT, SPAN_START, Record
from toolkit.telemetry.timing.names import ONE_LOGGER_NAMES

_ENDED_KEPT: Final = 10_000
_HELD_MAX: Final = 10_000
_NAMES_KEPT: Final = 10_000
_DEEPEST: Final = 1_000

# A span is announced once it is open for a second; after some more seconds an unknown parent stays unknown.
_HELD_S: Final = 5.0


class SpanFilter:
    """Chooses spans by their name: those of `only`, if any are given, and none of `except_`.

    A name may be ours (`forward`) or OneLogger's (`model_forward`), and `*` matches any characters.
    """

    def __init__(self, only: Sequence[str] = (), except_: Sequence[str] = ()) -> None:
        self.only = tuple(only)
        self.except_ = tuple(except_)
        self._known: dict[str, bool] = {}

    @property
    def takes_all(self) -> bool:
        """Whether all spans are exported."""
        return not self.only and not self.except_

    def takes(self, name: str) -> bool:
        """Return whether spans called `name` are exported."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _NAMES_KEPT:
                self._known.clear()
            known = (not self.only or _matches(name, self.only)) and not _matches(name, self.except_)
            self._known[name] = known
        return known


def span_filter_from(given: Mapping[str, Any] | None) -> SpanFilter:
    """Return the filter of an `export_spans` block: `{only: […]}`, `{except: […]}` or nothing.

    Raises:
        OptionsError: it is something else.
    """
    names = {key: texts(key, value) for key, value in only_or_except("export_spans", given or {}).items()}
    return SpanFilter(only=names.get("only", ()), except_=names.get("except", ()))


class SpanSelection:
    """Selects the records of the spans that one exporter sends.

    The child of an omitted span gets the nearest exported ancestor as its parent, so that the tree stays connected. A
    short span is written after its children; they, and what follows them, wait until it is known.
    """

    def __init__(self, span_filter: SpanFilter | None = None) -> None:
        self._filter = span_filter or SpanFilter()
        self._last_seq = -1
        self._newest = 0.0
        self._waiting: deque[Record] = deque()
        self._open: dict[str, _Known] = {}
        self._ended: OrderedDict[str, _Known] = OrderedDict()

    def take(self, batch: Sequence[Record]) -> list[Record]:
        """Return the records of `batch` that are ready and not taken before, without those of omitted spans."""
        for record in batch:
            seq = record.get("seq")
            if not isinstance(seq, int) or seq <= self._last_seq:
                continue
            self._last_seq = seq
            time = record.get("time")
            if isinstance(time, int | float):
                self._newest = max(self._newest, time)
            if record.get("event") not in _OF_SPANS:
                self._waiting.append(record)
            elif _is_sound(record):
                self._learn(record)
                if self._filter.takes(record["span" if record["event"] == SPAN_EVENT else "name"]):
                    self._waiting.append(record)
        return self._ready(is_last=False)

    def rest(self) -> list[Record]:
        """Return what still waits for a parent; no more records come."""
        return self._ready(is_last=True)

    def _learn(self, record: Record) -> None:
        if self._filter.takes_all or record["event"] == SPAN_EVENT:
            return
        known = _Known(is_taken=self._filter.takes(record["name"]), parent_id=record.get("parent_id"))
        if record["event"] == SPAN_START:
            self._open[record["id"]] = known
            return
        self._open.pop(record["id"], None)
        self._ended[record["id"]] = known
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _ready(self, *, is_last: bool) -> list[Record]:
        ready: list[Record] = []
        while self._waiting:
            record = self._waiting[0]
            event = record.get("event")
            if not self._filter.takes_all and event in _OF_SPANS:
                found = self._with_exported_parent(record, may_wait=not is_last)
                if found is None:
                    break
                record = found
            self._waiting.popleft()
            if event != SPAN_EVENT or record.get("span_id") is not None:
                ready.append(record)
        return ready

    def _with_exported_parent(self, record: Record, *, may_wait: bool) -> Record | None:
        """Return `record` below a span that is exported, or None where it should wait until its parent is known."""
        if record["event"] == SPAN_EVENT:
            ancestor = self._ancestor(record["span_id"])
            # Its own span is exported. It may have another span's id, if its own is only added up.
            return record if ancestor is _UNKNOWN else {**record, "span_id": ancestor.parent_id}
        ancestor = self._ancestor(record.get("parent_id"))
        if ancestor is _UNKNOWN and may_wait:
            is_fresh = self._newest - record["time"] < _HELD_S
            if is_fresh and len(self._waiting) <= _HELD_MAX:
                return None
        return {**record, "parent_id": ancestor.parent_id}

    def _ancestor(self, span_id: str | None) -> _Known:
        """Find the nearest exported span from `span_id` upwards; it is the `parent_id` of what comes back."""
        for _ in range(_DEEPEST):
            if span_id is None:
                return _ROOT
            known = self._open.get(span_id) or self._ended.get(span_id)
            if known is None:
                return _UNKNOWN
            if known.is_taken:
                return _Known(is_taken=True, parent_id=span_id)
            span_id = known.parent_id
        return _ROOT


class _Known(NamedTuple):
    """What later records need to know about a span."""

    is_taken: bool
    parent_id: str | None


_OF_SPANS: Final = (SPAN, SPAN_START, SPAN_EVENT)
_ROOT: Final = _Known(is_taken=True, parent_id=None)
_UNKNOWN: Final = _Known(is_taken=False, parent_id=None)


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
