"""Searches and sorts the runs of a list."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from toolkit.core import run_search as language
from toolkit.core.run_search import ALIASES, MAX_QUERY_LENGTH, Comparison, Query, QueryError, Word, checked
from toolkit.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED
from toolkit.runs.listing.run_listing import with_last_values
from toolkit.runs.store import NO_END, STARTING, UNREADABLE, RunCard, RunList, RunQuery, SortBy

__all__ = ["MAX_QUERY_LENGTH", "Query", "QueryError", "Word"]

STATUSES = (RUNNING, STARTING, STALLED, FAILED, LOST, NO_END, STOPPED, FINISHED, UNREADABLE)
"""All statuses, those that need attention first."""
_DAY_S: Final = 86_400.0
_MOST_NAMED: Final = 30
_MOST_READ: Final = 4_096
"""Of so many runs, the newest, the records are looked at for a metric that run.json does not have."""


def parse(text: str, now: float | None = None) -> Query:
    """Parse a search; an empty one matches every run. Case is ignored, quoted text is taken literally.

    Raises:
        QueryError: part of it is invalid.
    """
    return language.parse(text, statuses=STATUSES, now=now)


def matches(query: Query, card: RunCard) -> bool:
    """Return whether every term of `query` holds for `card`."""
    return not query.terms or language.matches(query, SearchedCard(card))


class SearchedCard:
    """A card, as a search sees it."""

    __slots__ = ("_card",)

    def __init__(self, card: RunCard) -> None:
        self._card = card

    def texts(self) -> Iterable[str]:
        """Return the texts in which a plain word is looked for."""
        card = self._card
        return (card.name, card.key, *card.tags, card.project or "", card.host, card.logged_by or "")

    def find(self, prefix: str, name: str) -> Sequence[Any]:
        """Return the values that the run has under a name: a field, a setting, an evaluation or a summary value."""
        card = self._card
        if not prefix:
            known = _FIELDS.get(name) or _FIELDS.get(name.casefold())
            if known is not None:
                values = [value for value in known(card) if value is not None]
                if values:
                    return values
        for given in (ALIASES.get(name.casefold(), name), name):
            for place in _PLACES[prefix]:
                value = place(card, given)
                if value is not None:
                    return (value,)
        return ()


def names_in(cards: Iterable[RunCard]) -> set[str]:
    """Return every name that a search can use for these runs."""
    found = {*_FIELDS}
    # Most runs of a list have the same names.
    shapes = {(tuple(card.config), tuple(card.evaluations), tuple(card.summary)) for card in cards}
    for shape in shapes:
        for names in shape:
            found.update(map(str, names))
    return found


def value_of(card: RunCard, name: str) -> Any:
    """Return what a run has under `name`, which may begin with `config:`, `best:` or `last:`; None if nothing."""
    prefix, colon, rest = name.partition(":")
    is_prefix = bool(colon) and prefix in _PLACES
    found = SearchedCard(card).find(*((prefix, rest) if is_prefix else ("", _SORTED_AS.get(name, name))))
    return found[0] if found else None


def sort_cards(cards: Iterable[RunCard], by: str) -> list[RunCard]:
    """Return `cards` sorted: newest, lowest loss, furthest, longest or most urgent first.

    `by` may also be a setting or a metric, if need be as `config:NAME`, `best:METRIC` or `last:METRIC`, the lowest
    first. With a `-` in front the order is reversed. Numbers come before texts, then non-finite values, then runs
    without a value; runs with equal values stay in their order.

    Raises:
        ValueError: no run has it; the message says what there is.
    """
    name = by.removeprefix("-")
    runs = list(cards)
    values = [_sorted_value(card, name) for card in runs]
    if name not in ORDERS and ":" not in name and runs and all(value is None for value in values):
        raise ValueError(_unknown_order(name, runs))
    is_down = by.startswith("-") is not (name in _HIGHEST_FIRST)
    numbers, texts, others, without = [], [], [], []
    for value, card in zip(values, runs, strict=True):
        if value is None:
            without.append(card)
        elif not isinstance(value, (int, float)):
            texts.append((_natural(str(value)), card))
        elif isinstance(value, int) or math.isfinite(value):
            numbers.append((value, card))
        else:
            others.append(card)
    for known in (numbers, texts):
        known.sort(key=lambda pair: pair[0], reverse=is_down)
    return [*(card for _, card in (*numbers, *texts)), *others, *without]


def _sorted_value(card: RunCard, name: str) -> Any:
    if name != "status":
        return value_of(card, name)
    return STATUSES.index(card.status.name) if card.status.name in STATUSES else len(STATUSES)


def _unknown_order(name: str, cards: Sequence[RunCard]) -> str:
    known = sorted(names_in(cards).difference(_FIELDS))
    near = difflib.get_close_matches(name, [*ORDERS, *known], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    more = f"; of these runs also {', '.join(known[:_MOST_NAMED])}" if known else ""
    return f"cannot sort by {name!r}: no run has it{hint} Allowed: {', '.join(ORDERS)}{more}"


def select_runs(cards: Iterable[RunCard], query: RunQuery, now: float) -> list[RunCard]:
    """Return those of `cards` that `query` finds at wall time `now`, in its order, on all pages.

    Raises:
        QueryError: the query's text is invalid.
    """
    cards, search = list(cards), parse(query.text, now)
    named = {query.sort.removeprefix("-")}.difference(ORDERS)
    named |= {
        term.name for term in search.terms if isinstance(term, Comparison) and term.prefix in ("", "last")
    }
    cards = _with_last_values(cards, named.difference(_FIELDS))
    if search.terms:
        search = checked(
            search, names_in(cards), lambda: (text for card in cards for text in (card.name, card.key))
        )
    since = None if query.days is None else now - query.days * _DAY_S
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


def _with_last_values(cards: list[RunCard], named: Iterable[str]) -> list[RunCard]:
    """Return the cards; those that lack a value that is asked for, with the last values in their records."""
    names = [name for name in named if not name.startswith(("config:", "best:"))]
    if not names:
        return cards
    return [
        with_last_values(card)
        if at < _MOST_READ and any(value_of(card, name) is None for name in names)
        else card
        for at, card in enumerate(cards)
    ]


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


def _setting(card: RunCard, name: str) -> Any:
    config = card.config
    if name in config:
        return config[name]
    folded = name.casefold()
    # A setting may be called by the end of its name: ema_decay for train.ema_decay.
    end = f".{folded}"
    return next(
        (value for key, value in config.items() if key.casefold() == folded or key.casefold().endswith(end)),
        None,
    )


def _evaluation(card: RunCard, name: str, *, best: bool) -> float | None:
    found = card.evaluations.get(name) or card.evaluations.get(f"epoch/{name}")
    if found is None:
        folded = name.casefold()
        found = next((item for key, item in card.evaluations.items() if key.casefold() == folded), None)
    if found is None:
        return None
    return found.best if best else found.last


def _summary(card: RunCard, name: str) -> Any:
    value = card.summary.get(name)
    if value is None:
        folded = name.casefold()
        value = next((v for key, v in card.summary.items() if str(key).casefold() == folded), None)
    return value if isinstance(value, (str, int, float)) else None


def _last(card: RunCard, name: str) -> float | None:
    return _evaluation(card, name, best=False)


def _best(card: RunCard, name: str) -> float | None:
    return _evaluation(card, name, best=True)


_PLACES: Final[Mapping[str, tuple[Callable[[RunCard, str], Any], ...]]] = {
    "": (_setting, _last, _summary),
    "config": (_setting,),
    "best": (_best,),
    "last": (_last, _summary),
    "summary": (_summary,),
}

_FIELDS: Final[Mapping[str, Callable[[RunCard], Sequence[Any]]]] = {
    "name": lambda card: (card.name, card.key),
    "tag": lambda card: card.tags,
    "status": lambda card: (card.status.name,),
    "project": lambda card: (card.project,),
    "host": lambda card: (card.host,),
    "tool": lambda card: (card.logged_by, card.format),
    "format": lambda card: (card.format,),
    "started": lambda card: (card.created,),
    "updated": lambda card: (card.last_sign,),
    "loss": lambda card: (card.loss,),
    "step": lambda card: (card.step,),
    "max_steps": lambda card: (card.max_steps,),
    "epoch": lambda card: (card.epoch,),
    "duration": lambda card: (card.duration_s,),
    "progress": lambda card: (card.progress,),
    "samples_per_sec": lambda card: (card.samples_per_sec,),
    "sessions": lambda card: (card.sessions,),
}
"""What every run has; the names before those of its configuration and its metrics."""

_SORTED_AS: Final = {"last sign": "updated", "age": "updated"}
_HIGHEST_FIRST: Final = frozenset({"last sign", "age", "updated", "started", "progress", "duration"})
ORDERS: Final = (*get_args(SortBy), "step", "format", "project", "age", "updated")
"""What every list can be sorted by, and `telemetry ls --sort` lists."""


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key that puts run-2 before run-10."""
    key = []
    for i, piece in enumerate(re.split("([0-9]+)", text.casefold())):
        # Compared by length first; int() refuses thousands of digits.
        digits = piece.lstrip("0") if i % 2 else piece
        key.append((len(digits) if i % 2 else 0, digits))
    return key
