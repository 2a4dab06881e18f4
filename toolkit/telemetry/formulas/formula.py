"""Parses formulas such as `ema(val_loss, 0.98) / train_loss`.

By a parser of its own and not by Python's: `val/loss` is one name here, positions are those of the typed text, and
what is not in the tables below cannot be written at all. Nothing is ever evaluated as Python.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from toolkit.telemetry.runfolder.metrics import Direction, metric_direction

MAX_LENGTH: Final = 500
MAX_DEPTH: Final = 30
MAX_PARTS: Final = 100
MAX_WINDOW: Final = 10_000
"""Records that all functions of a formula remember together: a rule must stay small compared with the training."""
PLACES: Final = ("step", "epoch", "time", "elapsed")
"""Where a record is; in quotes such a name is a metric."""
SETTING: Final = "config."
"""In front of the name of a setting."""
FUNCTIONS: Final = {
    **dict.fromkeys(("abs", "log", "exp", "sqrt", "delta", "first", "last", "best"), "(x)"),
    **dict.fromkeys(("min", "max"), "(x) or (x, n)"),
    **dict.fromkeys(("mean", "median"), "(x, n)"),
    "ema": "(x, weight)",
}
"""Every function, with what it is given."""
OF_ONE_VALUE: Final = ("abs", "log", "exp", "sqrt")
"""The others look at several records."""
COMPARES: Final = ("<", "<=", ">", ">=", "==", "!=")
_FOLLOWER_COST: Final = 5
_AVERAGES: Final = ("ema", "mean", "median", "last")
_WORDS: Final = ("and", "or")
_BINDING: Final = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(COMPARES, 3),
    **dict.fromkeys("+-", 4),
    **dict.fromkeys("*/", 5),
}
_MINUS: Final = 6
_TOKEN: Final = re.compile(
    r"""(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w.])
    |(?P<name>[^\W\d][\w.@]*(?:/[\w.@]+)*)
    |(?P<quoted>"[^"]*"|'[^']*'|`[^`]*`)
    |(?P<sign><=|>=|==|!=|[-+*/()<>,])""",
    re.VERBOSE,
)


class FormulaError(ValueError):
    """A formula that cannot be used: one sentence that says what is wrong, and at which character."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written."""

    value: float


@dataclass(frozen=True, slots=True)
class Name:
    """A metric, a place of the record, or a setting."""

    name: str
    kind: Kind
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function, and what it is applied to."""

    function: str
    parts: tuple[Node, ...]
    window: float | None = None
    """The records that a function looks at, or the weight of `ema`."""
    direction: Direction | None = None
    """Which values are better, for `best`."""


Node = Number | Name | Call
Kind = Literal["metric", "place", "setting"]


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula."""

    text: str
    root: Node

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that it needs."""
        return tuple(self.all_of("metric"))

    @property
    def cost(self) -> int:
        """About how many operations it takes at each record."""
        return _cost(self.root)

    def all_of(self, kind: Kind) -> dict[str, Name]:
        """Return the names of a kind, each where it is first; those of settings without `config.`."""
        found: dict[str, Name] = {}
        for one in _names_in(self.root):
            if one.kind == kind:
                found.setdefault(one.name, one)
        return found

    def unknown(self, known: Collection[str]) -> str | None:
        """Return a sentence about the first metric that is not `known`; None if all are."""
        for one in self.all_of("metric").values():
            if one.name not in known:
                near = difflib.get_close_matches(one.name, known, n=1, cutoff=0.5)
                hint = f"; did you mean {quoted(near[0])}?" if near else "."
                parts = one.name.split("/")
                if len(parts) > 1 and all(part in known or part.isdigit() for part in parts):
                    hint = "; to divide, put a space on either side of the /."
                return f"There is no metric {one.name!r} (character {one.at}){hint}"
        return None


def is_formula(metric: str) -> bool:
    """Return whether the name of a metric is a formula: it begins with `=`."""
    return metric.startswith("=")


def names_of(text: str) -> tuple[str, ...]:
    """Return the metrics that a formula needs; none if it is no formula."""
    try:
        return parse(text).names
    except FormulaError:
        return ()


def quoted(name: str) -> str:
    """Return the name of a metric as a formula has it."""
    found = _TOKEN.fullmatch(name)
    is_plain = found is not None and found.lastgroup == "name" and name not in (*_WORDS, *PLACES)
    if is_plain and not name.startswith(SETTING):
        return name
    mark = next((mark for mark in "\"'`" if mark not in name), '"')
    return f"{mark}{name}{mark}"


def _cost(node: Node) -> int:
    if isinstance(node, Call):
        is_follower = node.function in FUNCTIONS and node.function not in OF_ONE_VALUE
        return sum(map(_cost, node.parts)) + (_FOLLOWER_COST if is_follower else 1)
    return 1


def _names_in(node: Node) -> Iterator[Name]:
    """Yield every name in `node`, in the order of the text."""
    if isinstance(node, Name):
        yield node
    elif isinstance(node, Call):
        for part in node.parts:
            yield from _names_in(part)


@lru_cache(maxsize=256)
def parse(text: str) -> Formula:
    """Parse a formula, with or without a leading `=`.

    Raises:
        FormulaError: it is not one; the message says what and where.
    """
    if len(text) > MAX_LENGTH:
        raise FormulaError(f"The formula has {len(text)} characters; at most {MAX_LENGTH} are allowed.")
    return Formula(text.strip(), _Parser(text).whole())


class _Parser:
    """Operator precedence: each operator takes what binds more tightly than itself."""

    def __init__(self, text: str) -> None:
        self._parts = self._remembered = 0
        self._tokens = [*_tokens(text), ("end", "", len(text))]
        self._next = 0

    def whole(self) -> Node:
        found = self._expression(0, 0)
        kind, word, at = self._tokens[self._next]
        if kind != "end":
            raise _wrong(f"{word!r} was not expected here", at)
        return found

    def _next_token(self) -> tuple[str, str, int]:
        word = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return word

    def _expression(self, binding: int, depth: int) -> Node:
        self._parts += 1
        if depth > MAX_DEPTH or self._parts > MAX_PARTS:
            raise FormulaError(
                f"The formula is too large: at most {MAX_PARTS} parts and {MAX_DEPTH} levels are allowed."
            )
        left = self._operand(depth)
        is_compared = False
        while (own := _BINDING.get(self._tokens[self._next][1], 0)) > binding:
            _, sign, at = self._next_token()
            if sign in COMPARES:
                if is_compared:
                    raise _wrong("a comparison cannot be compared; join two by `and`", at)
                is_compared = True
            left = Call(sign, (left, self._expression(own, depth + 1)))
        return left

    def _operand(self, depth: int) -> Node:
        kind, word, at = self._next_token()
        if kind == "number":
            return Number(float(word))
        if kind == "quoted":
            return Name(word[1:-1], "metric", at + 1)
        if word in ("-", "+"):
            value = self._expression(_MINUS, depth + 1)
            if word == "+":
                return value
            return Number(-value.value) if isinstance(value, Number) else Call("negative", (value,))
        if word == "(":
            inside = self._expression(0, depth + 1)
            self._close(at)
            return inside
        if kind == "name" and word not in _WORDS:
            return self._call(word, at, depth) if self._tokens[self._next][1] == "(" else _name(word, at)
        raise _wrong("a name, a number or ( is missing" + (f" before {word!r}" if word else ""), at)

    def _call(self, name: str, at: int, depth: int) -> Call:
        if name not in FUNCTIONS:
            near = difflib.get_close_matches(name, FUNCTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"There are {', '.join(sorted(FUNCTIONS))}."
            raise _wrong(f"there is no function {name!r}", at, f"; {hint}" if near else f". {hint}")
        self._next_token()
        given = [self._expression(0, depth + 1)]
        while self._tokens[self._next][1] == ",":
            self._next_token()
            given.append(self._expression(0, depth + 1))
        self._close(at)
        allowed = {text.count(",") + 1 for text in FUNCTIONS[name].split(" or ")}
        if len(given) not in allowed:
            raise _wrong(f"the function {name} takes {FUNCTIONS[name]}", at)
        window = _window(name, given[1], at) if len(given) > 1 else None
        self._remembered += int(window or 0)
        if self._remembered > MAX_WINDOW:
            raise _wrong(f"the formula looks at more than {MAX_WINDOW:,} records", at)
        if name not in OF_ONE_VALUE and not any(one.kind == "metric" for one in _names_in(given[0])):
            raise _wrong(f"the function {name} needs a metric", at)
        return Call(name, (given[0],), window, _direction(given[0], at) if name == "best" else None)

    def _close(self, opened: int) -> None:
        if self._next_token()[1] != ")":
            raise _wrong("the ) is missing for what begins", opened)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at = len(text) - len(text.lstrip().removeprefix("=")) if text.lstrip().startswith("=") else 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        found = _TOKEN.match(text, at)
        if found is None or not found.lastgroup:
            raise _wrong(f"{text[at : at + 10]!r} cannot be read", at)
        yield found.lastgroup, found.group(), at
        at = found.end()


def _name(token: str, at: int) -> Name:
    if token.startswith(SETTING) and len(token) > len(SETTING):
        return Name(token.removeprefix(SETTING), "setting", at + 1)
    return Name(token, "place" if token in PLACES else "metric", at + 1)


def _window(function: str, node: Node, at: int) -> float:
    value = node.value if isinstance(node, Number) else math.nan
    if function == "ema":
        if not 0 <= value < 1:
            raise _wrong("the weight of ema must be a number from 0 to less than 1, such as 0.98", at)
    elif not (1 <= value <= MAX_WINDOW and value == int(value)):
        raise _wrong(f"the second value of {function} must be a whole number from 1 to {MAX_WINDOW:,}", at)
    return value


def _direction(node: Node, at: int) -> Direction:
    while isinstance(node, Call) and node.function in _AVERAGES:
        node = node.parts[0]
    found = metric_direction(node.name) if isinstance(node, Name) else None
    if found is None:
        what = f"of {node.name!r} " if isinstance(node, Name) else ""
        raise _wrong(f"the function best does not know which values {what}are better; use min() or max()", at)
    return found


def _wrong(what: str, at: int, more: str = ".") -> FormulaError:
    return FormulaError(f"{what[:1].upper()}{what[1:]} (character {at + 1}){more}")
