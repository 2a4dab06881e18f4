"""The search language of the Runs page: words, tag:x, -word, "a phrase", loss<0.2."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from dashboard.data.run_store import NO_END, STARTING, UNREADABLE, RunCard, RunList, RunQuery, SortBy
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED

FIELDS = ("tag", "status", "project", "host", "tool")
STATUSES = (RUNNING, STARTING, STALLED, FAILED, LOST, NO_END, STOPPED, FINISHED, UNREADABLE)
"""All statuses, those that need attention first."""

MAX_QUERY_LENGTH = 2_000


class QueryError(ValueError):
    """Invalid search; the message says which part and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A text in the run's name, key, tags, project or host."""

    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field: a whole tag, status or project, or part of the host name."""

    field: str
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of a number; a run without that number does not match."""

    number: str
    sign: str
    bound: float
    negated: bool = False


Term = Word | Field | Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search: every term must hold."""

    terms: tuple[Term, ...] = ()


def parse(text: str) -> Query:
    """Parse a search; an empty one matches every run. Case is ignored, quoted text is taken literally.

    Raises:
        QueryError: part of it is invalid.
    """
    if len(text) > MAX_QUERY_LENGTH:
        raise QueryError(f"the search is {len(text)} characters long, at most {MAX_QUERY_LENGTH} are allowed")
    terms: list[Term] = []
    at = 0
    while found := _PART.search(text, at):
        at = found.end()
        if (term := _term(found)) is not None:
            terms.append(term)
    return Query(terms=tuple(terms))


def matches(query: Query, card: RunCard) -> bool:
    """Return whether every term of `query` holds for `card`."""
    return all(_holds(term, card) is not term.negated for term in query.terms)


def sort_cards(cards: Iterable[RunCard], by: SortBy) -> list[RunCard]:
    """Return `cards` sorted: newest, lowest loss, furthest, longest or most urgent first.

    Runs without the value come last, after non-finite values; the sort is stable.

    Raises:
        ValueError: `by` is unknown.
    """
    if by not in get_args(SortBy):
        raise ValueError(f"cannot sort by {by!r}; known: {', '.join(get_args(SortBy))}")
    return sorted(cards, key=_ORDERS[by])


def select_runs(cards: Iterable[RunCard], query: RunQuery, now: float) -> list[RunCard]:
    """Return those of `cards` that `query` finds at wall time `now`, in its order, on all pages.

    Raises:
        QueryError: the query's text is invalid.
    """
    search = parse(query.text)
    since = None if query.days is None else now - query.days * _SECONDS["d"]
    found = (
        card
        for card in cards
        if (query.archived or not card.archived)
        and (not query.statuses or card.status.name in query.statuses)
        and (query.project is None or card.project == query.project)
        and (since is None or (card.last_sign is not None and card.last_sign >= since))
        and matches(search, card)
    )
    return sort_cards(found, query.sort)


def page_of(cards: Sequence[RunCard], query: RunQuery) -> tuple[int, Sequence[RunCard]]:
    """Return the number of the page that `query` asks for, and its part of `cards`."""
    if query.per_page is None:
        return 1, cards
    if query.per_page < 1:
        return 1, ()
    number = max(1, min(query.page, -(-len(cards) // query.per_page)))
    return number, cards[(number - 1) * query.per_page : number * query.per_page]


def list_of(cards: list[RunCard], query: RunQuery, now: float, places: tuple[str, ...]) -> RunList:
    """Return the page of `cards`, all that there are in `places`, that `query` asks for at wall time `now`."""
    cards.sort(key=lambda card: card.last_sign or 0.0, reverse=True)
    found = select_runs(cards, query, now) if query != RunQuery() else cards
    page, shown = page_of(found, query)
    return RunList(
        cards=tuple(shown),
        places=places,
        matching=len(found),
        page=page,
        statuses=Counter(card.status.name for card in cards if not card.archived),
        archived_statuses=Counter(card.status.name for card in cards if card.archived),
        tags=tuple(sorted({tag for card in cards for tag in card.tags})),
        projects=tuple(sorted({card.project for card in cards if card.project})),
    )


# Alternatives are tried in this order; together they match any text except whitespace.
_PART = re.compile(
    r"""
    (?P<negated>-?)
    (?:
        "(?P<phrase>[^"]*)"
      | (?P<field>[A-Za-z_]+):(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s"]*))
      | (?P<number>[^\s"<>]*)\s*(?P<sign><=|>=|<|>)\s*(?P<bound>[^\s"<>]*)
      | (?P<open>"[^"]*\Z)
      | (?P<word>[^\s"<>]+)
    )
    """,
    re.VERBOSE,
)

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(?:(?:\d+\.?\d*|\.\d+)[smhd])+", re.ASCII | re.IGNORECASE)
_DURATION_PART = re.compile(r"([\d.]+)([smhd])", re.ASCII | re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_NUMBERS: Mapping[str, Callable[[RunCard], float | None]] = {
    "loss": lambda card: card.loss,
    "lr": lambda card: card.lr,
    "step": lambda card: card.step,
    "max_steps": lambda card: card.max_steps,
    "epoch": lambda card: card.epoch,
    "duration": lambda card: card.duration_s,
    "progress": lambda card: card.progress,
    "samples_per_sec": lambda card: card.samples_per_sec,
    "sessions": lambda card: card.sessions,
}


def _term(found: re.Match[str]) -> Term | None:
    negated = bool(found["negated"])
    if found["phrase"] is not None:
        return Word(text=found["phrase"].casefold(), negated=negated) if found["phrase"] else None
    if found["field"] is not None:
        value = found["quoted"] if found["quoted"] is not None else found["value"]
        return _field(found["field"], value, negated)
    if found["sign"] is not None:
        return _comparison(found["number"], found["sign"], found["bound"], negated)
    if found["open"] is not None:
        raise QueryError(f"the quote before {_shown(found['open'][1:])} is not closed")
    if found[0] == "-":
        raise QueryError("a single - means nothing; write -word to exclude runs with that word")
    return Word(text=found["word"].casefold(), negated=negated)


def _field(field: str, value: str, negated: bool) -> Field:
    name = field.casefold()
    if name not in FIELDS:
        known = ", ".join(f"{known}:" for known in FIELDS)
        raise QueryError(f"unknown field {_shown(field)}; known: {known}. Quote a text that contains a colon")
    if not value:
        raise QueryError(f"`{name}:` needs a value, e.g. {name}:{_LIKE[name]}")
    value = value.casefold()
    if name == "status" and value not in STATUSES:
        raise QueryError(f"unknown status {_shown(value)}; known: {', '.join(STATUSES)}")
    return Field(field=name, text=value, negated=negated)


_LIKE = {"tag": "baseline", "status": RUNNING, "project": "faces", "host": "node1", "tool": "tensorboard"}


def _comparison(number: str, sign: str, bound: str, negated: bool) -> Comparison:
    if not number:
        raise QueryError(f"`{sign}` needs a name before it, e.g. loss{sign}0.2")
    name = number.casefold() if number.casefold() in _NUMBERS else number
    return Comparison(number=name, sign=sign, bound=_bound(name, sign, bound), negated=negated)


def _bound(name: str, sign: str, text: str) -> float:
    value = math.nan
    if _NUMBER.fullmatch(text):
        value = float(text)
        # Progress is at most 1, so a number above 1 is a percentage.
        if name == "progress" and value > 1:
            value /= 100
    elif name == "progress" and text.endswith("%") and _NUMBER.fullmatch(text[:-1]):
        value = float(text[:-1]) / 100
    elif name == "duration" and _DURATION.fullmatch(text):
        value = sum(float(n) * _SECONDS[unit.lower()] for n, unit in _DURATION_PART.findall(text))
    if not math.isfinite(value):
        allowed = _ALLOWED.get(name, "a number such as 0.2 or 1e-4")
        name = _cut(name)
        raise QueryError(f"`{name}{sign}` needs {allowed}, got {_shown(text) if text else 'nothing'}")
    return value


_ALLOWED = {
    "duration": "a duration such as 90s, 15m, 1h30m or 2d",
    "progress": "a percentage such as 50% or 0.5",
}


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _holds(term: Term, card: RunCard) -> bool:
    if isinstance(term, Word):
        places = (card.name, card.key, *card.tags, card.project or "", card.host, card.logged_by or "")
        return any(term.text in place.casefold() for place in places)
    if isinstance(term, Field):
        if term.field == "tag":
            return any(term.text == tag.casefold() for tag in card.tags)
        if term.field == "tool":
            return term.text in (card.logged_by or "").casefold()
        if term.field == "host":
            return term.text in card.host.casefold()
        whole = card.status.name if term.field == "status" else card.project or ""
        return term.text == whole.casefold()
    value = _number_of(card, term.number)
    return value is not None and _SIGNS[term.sign](value, term.bound)


def _number_of(card: RunCard, name: str) -> float | None:
    known = _NUMBERS.get(name)
    value: Any = known(card) if known is not None else None
    if value is None:
        value = card.summary.get(name)
    if value is None:
        value = next((v for key, v in card.summary.items() if str(key).casefold() == name.casefold()), None)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _rank(value: float | None, *, highest_first: bool) -> tuple[int, float]:
    if value is None:
        return (2, 0.0)
    if not math.isfinite(value):
        return (1, 0.0)
    return (0, -value if highest_first else value)


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that puts run-2 before run-10."""
    key = []
    for i, piece in enumerate(re.split("([0-9]+)", text.casefold())):
        # Compared by length first; int() refuses thousands of digits.
        digits = piece.lstrip("0") if i % 2 else piece
        key.append((len(digits) if i % 2 else 0, digits))
    return key


_ORDERS: Mapping[str, Callable[[RunCard], Any]] = {
    "last sign": lambda card: _rank(card.last_sign, highest_first=True),
    "started": lambda card: _rank(card.created, highest_first=True),
    "name": lambda card: _natural(card.name),
    "loss": lambda card: _rank(card.loss, highest_first=False),
    "progress": lambda card: _rank(card.progress, highest_first=True),
    "duration": lambda card: _rank(card.duration_s, highest_first=True),
    "status": lambda card: (
        STATUSES.index(card.status.name) if card.status.name in STATUSES else len(STATUSES)
    ),
}
