"""Searches and sorts the runs of a list."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from toolkit.telemetry.core import run_search as language
from toolkit.telemetry.core.run_search import (
    ALIASES,
    MAX_QUERY_LENGTH,
    Comparison,
    Query,
    QueryError,
    Word,
    checked,
    natural_key,
)
from toolkit.telemetry.formulas import formula
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.formulas.functions import truth
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, LOST, RUNNING, STALLED, STOPPED
from toolkit.telemetry.runs.listing.formula_value import formula_value
from toolkit.telemetry.runs.listing.run_listing import with_last_values
from toolkit.telemetry.runs.settings import as_number
from toolkit.telemetry.runs.store import NO_END, STARTING, UNREADABLE, RunCard, RunList, RunQuery, SortBy

__all__ = ["MAX_QUERY_LENGTH", "Query", "QueryError", "Word"]

STATUSES = (RUNNING, STARTING, STALLED, FAILED, LOST, NO_END, STOPPED, FINISHED, UNREADABLE)
"""All statuses, those that need attention first."""
_MOST_NAMED: Final = 30
_MOST_WARNINGS: Final = 100_000
"""One critical finding comes before any number of warnings."""
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
        names = {
            "config": card.config,
            "last": card.evaluations,
            "best": card.evaluations,
            "summary": card.summary,
        }
        for place, one in candidates(prefix, name, names):
            value = _value_at(card, place, one)
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
    one, prefix, _ = split_order(name)
    if is_formula(one):
        return formula_value(one, card.evaluations, SearchedCard(card).find)
    found = SearchedCard(card).find(prefix, one)
    return found[0] if found else None


def setting_of(card: RunCard, name: str) -> float | None:
    """Return a setting of a run as a number, as formulas have it; None if it has none."""
    return as_number(value_of(card, f"config:{name}"))


def split_order(by: str) -> tuple[str, str, bool]:
    """Return the name in an order, its prefix, and whether the highest value comes first."""
    name, is_reversed = by.removeprefix("-"), by.startswith("-")
    prefix, colon, rest = name.partition(":")
    if is_formula(name) or not colon or prefix not in _PLACES:
        shown = name if is_formula(name) else _SORTED_AS.get(name, name)
        return shown, "", is_reversed is not (name in _HIGHEST_FIRST)
    is_highest_best = prefix == "best" and metric_direction(rest) == "max"
    return rest, prefix, is_reversed is not is_highest_best


def sort_cards(cards: Iterable[RunCard], by: str) -> list[RunCard]:
    """Return `cards` sorted: newest, lowest loss, furthest, longest or most urgent first.

    `by` may also be a setting or a metric, if need be as `config:NAME` or `last:METRIC`, the lowest first, or
    `best:METRIC`, the best first. With a `-` in front the order is reversed. Numbers come before texts, then non-finite
    values, then runs without a value; runs with equal values stay in their order.

    Raises:
        ValueError: no run has it; the message says what there is.
    """
    name = by.removeprefix("-")
    runs = list(cards)
    values = [_sorted_value(card, name) for card in runs]
    if name not in ORDERS and ":" not in name and runs and all(value is None for value in values):
        why = formula.parse(name).unknown(names_in(runs)) or "" if is_formula(name) else ""
        raise ValueError(why or unknown_order(name, names_in(runs)))
    is_down = split_order(by)[2]
    numbers, texts, others, without = [], [], [], []
    for value, card in zip(values, runs, strict=True):
        if value is None:
            without.append(card)
        elif not isinstance(value, (int, float)):
            texts.append((natural_key(str(value)), card))
        elif isinstance(value, int) or math.isfinite(value):
            numbers.append((value, card))
        else:
            others.append(card)
    for known in (numbers, texts):
        known.sort(key=lambda pair: pair[0], reverse=is_down)
    return [*(card for _, card in (*numbers, *texts)), *others, *without]


def _alerts(found: tuple[int, int]) -> Sequence[int | str]:
    """Return how many findings are open, and of which severities."""
    named = [name for name, number in zip(("critical", "warning"), found, strict=True) if number]
    return (sum(found), *named)


def _sorted_value(card: RunCard, name: str) -> Any:
    if name == "alerts":
        critical, warnings = card.open_findings
        return critical * _MOST_WARNINGS + min(warnings, _MOST_WARNINGS - 1)
    if name != "status":
        return value_of(card, name)
    return STATUSES.index(card.status.name) if card.status.name in STATUSES else len(STATUSES)


def unknown_order(name: str, names: Iterable[str]) -> str:
    """Return that no run has what a list is to be sorted by, and the `names` that there are."""
    known = sorted(set(names) - FIELD_NAMES)
    near = difflib.get_close_matches(name, [*ORDERS, *known], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    more = f"; of these runs also {', '.join(known[:_MOST_NAMED])}" if known else ""
    return f"cannot sort by {name!r}: no run has it{hint} Allowed: {', '.join(ORDERS)}{more}"


def select_runs(cards: Iterable[RunCard], query: RunQuery, now: float) -> list[RunCard]:
    """Return those of `cards` that `query` finds at wall time `now`, in its order, on all pages.

    Raises:
        QueryError: the query's text is invalid.
    """
    condition = query.text.strip() if is_formula(query.text.strip()) else ""
    cards, search = list(cards), parse("" if condition else query.text, now)
    named = {query.sort.removeprefix("-"), *([condition] if condition else ())}.difference(ORDERS)
    named |= {
        term.name for term in search.terms if isinstance(term, Comparison) and term.prefix in ("", "last")
    }
    cards = _with_last_values(cards, named.difference(_FIELDS))
    if search.terms:
        names = names_in(cards)
        terms = {term.name for term in search.terms if isinstance(term, Comparison)}
        search = checked(
            search,
            names | {name for name in terms if usual_name(name) in names},
            lambda typed: any(typed in text.casefold() for card in cards for text in (card.name, card.key)),
        )
    if condition:
        cards = _for_which(cards, condition)
    found = (
        card
        for card in cards
        if (query.archived or not card.archived)
        and (not query.statuses or card.status.name in query.statuses)
        and (query.project is None or card.project == query.project)
        and matches(search, card)
    )
    # No rows have no order.
    return list(found) if query.per_page == 0 else sort_cards(found, query.sort)


def _for_which(cards: list[RunCard], condition: str) -> list[RunCard]:
    """Return the runs for which a formula holds."""
    try:
        unknown = formula.parse(condition).unknown(names_in(cards)) if cards else None
        if unknown is not None:
            raise QueryError(unknown)
        return [card for card in cards if truth(value_of(card, condition) or 0.0)]
    except formula.FormulaError as error:
        raise QueryError(str(error)) from error


def _with_last_values(cards: list[RunCard], named: Iterable[str]) -> list[RunCard]:
    """Return the cards; those that lack a value that is asked for, with the last values in their records."""
    asked = [one for name in named for one in (formula.names_of(name) if is_formula(name) else (name,))]
    names = [name for name in asked if not name.startswith(("config:", "best:")) and name not in _FIELDS]
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
    cards.sort(key=lambda card: (-(card.last_sign or 0.0), card.id))
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


def usual_name(name: str) -> str:
    """Return the usual name of a setting that a configuration calls otherwise: learning_rate for optim.lr."""
    return USUAL_NAMES.get(name.casefold().rpartition(".")[2], name)


def unknown_among(asked: Iterable[str], cards: Sequence[RunCard]) -> str | None:
    """Return a sentence about the first name that no run has; None if each is a formula, a field, or one has it."""
    names = names_in(cards)
    for name in asked:
        one = split_order(name)[0]
        if (
            not is_formula(name)
            and one not in FIELD_NAMES
            and all(value_of(card, name) is None for card in cards)
        ):
            near = difflib.get_close_matches(one, names, n=3)
            known = ", ".join(sorted(names - FIELD_NAMES)[:_MOST_NAMED])
            return f"no run has {name!r}; {f'did you mean {near[0]}?' if near else f'there is {known}'}"
    return None


def candidates(prefix: str, name: str, names: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    """Yield place and name of what `name` may mean among the `names` of each place: the first that a run has counts."""
    for given in dict.fromkeys((ALIASES.get(name.casefold(), name), name, usual_name(name))):
        folded = given.casefold()
        for place in _PLACES[prefix]:
            exact = (given, f"epoch/{given}") if place in ("last", "best") else (given,)
            yield from ((place, one) for one in exact if one in names[place])
            # A setting may be called by the end of its name: ema_decay for train.ema_decay.
            end = f".{folded}" if place == "config" else "\0"
            near = {one for one in names[place] if (low := one.casefold()) == folded or low.endswith(end)}
            yield from (
                (place, one) for one in sorted(near.difference(exact), key=lambda one: (len(one), one))
            )


def _value_at(card: RunCard, place: str, name: str) -> Any:
    if place == "config":
        return card.config[name]
    if place == "summary":
        value = card.summary[name]
        return value if isinstance(value, (str, int, float)) else None
    return getattr(card.evaluations[name], place)


_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("config", "last", "summary"),
    "config": ("config",),
    "best": ("best",),
    "last": ("last", "summary"),
    "summary": ("summary",),
}

_FIELDS: Final[Mapping[str, Callable[[RunCard], Sequence[Any]]]] = {
    "name": lambda card: (card.name, card.key),
    "tag": lambda card: card.tags,
    "status": lambda card: (card.status.name,),
    "project": lambda card: (card.project,),
    "host": lambda card: (card.host,),
    "tool": lambda card: (card.logged_by, card.format),
    "alerts": lambda card: _alerts(card.open_findings),
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

FIELD_NAMES: Final = frozenset(_FIELDS)
_SORTED_AS: Final = {"last sign": "updated", "age": "updated"}
_HIGHEST_FIRST: Final = frozenset(
    {"last sign", "age", "updated", "started", "progress", "duration", "alerts"}
)
ORDERS: Final = (*get_args(SortBy), "step", "format", "project", "age", "updated", "alerts")
"""What every list can be sorted by, and `telemetry ls --sort` lists."""
