"""Rebuilds the tree of spans from records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from toolkit.runfolder.records import END, SPAN, SPAN_EVENT, SPAN_START, START, Record
from toolkit.timing.names import HOST_CLOCK

MAX_DEPTH: Final = 64
"""Spans nested deeper than this become siblings, which also limits hostile files."""

_LATEST: Final = 4e9
"""Seconds since 1970, up to 2096; later times are invalid, and their nanoseconds would not fit 64 bits."""

_NOTHING: Final[Mapping[str, Any]] = {}

UNKNOWN_PARENT: Final = "its parent was not written"
IN_A_CIRCLE: Final = "it is its own ancestor"
TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH}"


class Span(NamedTuple):
    """One span, as recorded."""

    id: str
    """Empty if the record has no valid one."""
    name: str
    start: float
    """Wall time, in seconds."""
    duration: float | None
    """Seconds; None if its end was not written."""
    parent_id: str | None = None
    clock: str = HOST_CLOCK
    session: int = 0
    rank: int = 0
    thread: str | None = None
    step: int | None = None
    attributes: Mapping[str, Any] = _NOTHING
    error: Mapping[str, Any] | None = None
    kept: str | None = None
    """Why a span that is normally only summed was kept: start, end, incident or asked."""
    unfinished: bool = False
    """The run ended while it was open, and the logger closed it."""


def read_span(record: Record) -> Span | None:
    """Return the span in a `span` or `span_start` record; None if it has no valid time."""
    event = record.get("event")
    if event not in (SPAN, SPAN_START):
        return None
    duration = None
    if event == SPAN:
        took = number_in(record.get("duration"))
        # A clock that was set back makes a duration negative.
        duration = None if took is None else seconds_in(max(0.0, took))
        if duration is None:
            return None
    start = seconds_in(record.get("start", record.get("time")))
    if start is None:
        return None
    attributes, error = record.get("attributes"), record.get("error")
    return Span(
        id=_text(record.get("id")) or "",
        parent_id=_text(record.get("parent_id")),
        name=_text(record.get("name")) or "span",
        start=start,
        duration=duration,
        clock=_text(record.get("clock")) or HOST_CLOCK,
        session=_whole(record.get("session")) or 0,
        rank=_whole(record.get("rank")) or 0,
        thread=_text(record.get("thread")),
        step=_whole(record.get("global_step")),
        attributes=attributes if type(attributes) is dict else _NOTHING,
        error=error if type(error) is dict and error else None,
        kept=_text(record.get("kept")),
        unfinished=record.get("unfinished") is True,
    )


@dataclass(slots=True, eq=False)
class Node:
    """A span in its tree."""

    span: Span
    state: Literal["done", "open", "died"]
    """`open` is still running; `died` was open when its process died."""
    end: float
    """When it ended; if it did not, the last sign of its session."""
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    """In the order in which they began."""
    events: list[Record] = field(default_factory=list)
    """What happened inside it, in the order of the file."""
    misplaced: str | None = None
    """Why it is not under its own parent."""


@dataclass(slots=True)
class SpanTree:
    """The spans of some records as a tree."""

    roots: list[Node] = field(default_factory=list)
    duplicates: int = 0
    """Duplicate ends; the first one is used."""
    skipped: int = 0
    """Span records without a valid time."""

    def walk(self) -> Iterator[tuple[int, Node]]:
        """Yield every span and its depth, parents before children."""
        waiting = [(0, node) for node in reversed(self.roots)]
        while waiting:
            depth, node = waiting.pop()
            yield depth, node
            waiting.extend((depth + 1, child) for child in reversed(node.children))


_Key = tuple[int, int, str]


def build_tree(records: Iterable[Record], *, ended: bool = False) -> SpanTree:
    """Return the spans of `records`, which are in the order in which they were written, as a tree.

    Every span with a valid time is in the tree once. `ended` means that no process writes the file any more:
    what is open then has died, as has what a session left open that ended or was followed by another.
    """
    tree = SpanTree()
    found: dict[_Key, Span] = {}
    nameless: list[Span] = []
    happened: dict[_Key, list[Record]] = {}
    sessions = Sessions()
    for record in records:
        sessions.take(record)
        event = record.get("event")
        if event == SPAN_EVENT:
            within = _text(record.get("span_id"))
            if within is not None:
                happened.setdefault((*_place(record), within), []).append(record)
            continue
        if event not in (SPAN, SPAN_START):
            continue
        span = read_span(record)
        if span is None:
            tree.skipped += 1
        elif not span.id:
            nameless.append(span)
        else:
            _keep(tree, found, span)
    nodes = {key: _node(span, sessions, ended) for key, span in found.items()}
    for key, node in nodes.items():
        node.events = happened.get(key, [])
    loose = [_node(span, sessions, ended) for span in nameless]
    _link(nodes, loose)
    tree.roots = sorted((n for n in (*nodes.values(), *loose) if n.parent is None), key=_order)
    _flatten_the_deep(tree)
    return tree


class Sessions:
    """The last sign of each session of a record file, and whether it has ended."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], float] = {}
        self._over: set[tuple[int, int]] = set()

    def take(self, record: Record) -> None:
        """Read the next record of the file."""
        place = _place(record)
        moment = seconds_in(record.get("time"))
        if moment is not None:
            self._last[place] = max(moment, self._last.get(place, moment))
        event = record.get("event")
        if event == END:
            self._over.add(place)
        elif event == START:
            rank, session = place
            self._over.update(known for known in self._last if known[0] == rank and known[1] < session)

    def is_over(self, span: Span) -> bool:
        """Return whether the session of `span` has ended."""
        return (span.rank, span.session) in self._over

    def last_heard(self, span: Span) -> float:
        """Return the last sign of the session of `span`, at least the start of the span."""
        return max(span.start, self._last.get((span.rank, span.session), span.start))


def _place(record: Record) -> tuple[int, int]:
    return _whole(record.get("rank")) or 0, _whole(record.get("session")) or 0


def _key(span: Span) -> _Key:
    return span.rank, span.session, span.id


def _keep(tree: SpanTree, found: dict[_Key, Span], span: Span) -> None:
    known = found.get(_key(span))
    if known is None or (known.duration is None and span.duration is not None):
        found[_key(span)] = span
    elif span.duration is not None:
        tree.duplicates += 1


def _node(span: Span, sessions: Sessions, ended: bool) -> Node:
    if span.duration is not None:
        return Node(span, "done", span.start + span.duration)
    over = ended or sessions.is_over(span)
    return Node(span, "died" if over else "open", sessions.last_heard(span))


def _link(nodes: Mapping[_Key, Node], loose: list[Node]) -> None:
    """Put every node under its parent, or under the enclosing span if the parent is missing."""
    astray = list(loose)
    for key, node in nodes.items():
        wanted = node.span.parent_id
        if wanted is None:
            continue
        parent = nodes.get((*key[:2], wanted))
        if parent is None:
            node.misplaced = UNKNOWN_PARENT
            astray.append(node)
        else:
            node.parent = parent
    _break_circles(nodes.values())
    around: dict[tuple[int, int], list[Node]] = {}
    for node in nodes.values():
        if node.parent is None and node.misplaced is None:
            around.setdefault((node.span.rank, node.span.session), []).append(node)
    for node in astray:
        node.parent = _root_around(node, around.get((node.span.rank, node.span.session), ()))
    for node in (*nodes.values(), *loose):
        if node.parent is not None:
            node.parent.children.append(node)
    for node in nodes.values():
        node.children.sort(key=_order)


def _root_around(node: Node, roots: Iterable[Node]) -> Node | None:
    if node.span.parent_id is None:
        return None
    return next((root for root in roots if root.span.start <= node.span.start <= root.end), None)


def _break_circles(nodes: Iterable[Node]) -> None:
    safe: set[int] = set()
    for node in nodes:
        path: set[int] = set()
        at: Node | None = node
        while at is not None and id(at) not in safe:
            path.add(id(at))
            if at.parent is not None and id(at.parent) in path:
                at.parent, at.misplaced = None, IN_A_CIRCLE
            at = at.parent
        safe |= path


def _flatten_the_deep(tree: SpanTree) -> None:
    waiting = [(1, root) for root in tree.roots]
    while waiting:
        depth, node = waiting.pop()
        if depth + 1 < MAX_DEPTH:
            waiting.extend((depth + 1, child) for child in node.children)
            continue
        below, node.children = list(node.children), list(node.children)
        while below:
            lower = below.pop()
            for child in lower.children:
                child.parent, child.misplaced = node, TOO_DEEP
                node.children.append(child)
                below.append(child)
            lower.children = []


def _order(node: Node) -> tuple[float, float, str]:
    return node.span.start, -node.end, node.span.id


def seconds_in(value: object) -> float | None:
    """Return `value` if it is a valid time or duration, else None."""
    # Nearly every time is a float; NaN and infinities fail the comparison.
    number = value if type(value) is float else number_in(value)
    return number if number is not None and 0.0 <= number < _LATEST else None


def number_in(value: object) -> float | None:
    """Return `value` as a finite number, or None."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if type(value) is not int:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and -(2**53) < value < 2**53 else None


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None
