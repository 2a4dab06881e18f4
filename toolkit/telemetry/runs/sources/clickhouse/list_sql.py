"""A query for runs as SQL. What a search means is defined by `runs.listing.search`; the node made the columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from toolkit.telemetry.core.run_search import Comparison, Query, QueryError, Term, Word
from toolkit.telemetry.fleet.engine import quote
from toolkit.telemetry.fleet.run_rows import BETWEEN, KINDS, NOT_FINITE, value_path
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.runfolder.status import LOST, RUNNING, STALLED
from toolkit.telemetry.runs.listing.search import STATUSES, candidates, split_order
from toolkit.telemetry.runs.store import STARTING, RunQuery

SILENT_S: Final = 60
"""The shipper reports a live run every 15 s."""
Names = Mapping[str, Mapping[str, Collection[str]]]
"""Of the values that runs have, by place: their kinds by name."""
PLACES: Final = ("field", "config", "last", "best", "summary")
_MOST_MEANT: Final = 100
COLUMNS: Final = ("updated", "name", "status", "tag")
"""Orders that need no names."""
MISSING: Final = 3
"""The kind of a value that a run lacks."""
_BETWEEN: Final = quote(BETWEEN)
STATUS: Final = (
    f"multiIf(is_silent, '{LOST}', status = '{RUNNING}' AND isNaN(step), '{STARTING}', toString(status))"
)
ONE_THREAD: Final = "SETTINGS max_threads = 1"
"""Several for a few columns take the engine up to twice the time."""
IS_SILENT: Final = (
    f"status IN ('{RUNNING}', '{STALLED}') AND received < now() - INTERVAL {SILENT_S} SECOND AS is_silent"
)


_LABELS: Final = (
    "(SELECT run_id, archived, deleted, shown AS l_shown, has_tags, tags AS l_tags, tagged AS l_tagged "
    "FROM labels FINAL) AS l"
)
_NAME: Final = "if(l_shown != '', l_shown, shown)"
_TAGS: Final = "if(has_tags, l_tagged, tagged)"
_TYPED: Final = "substring({text}, position({text}, " + _BETWEEN + ") + 1)"
_FIELDS: Final = frozenset(
    "loss step max_steps epoch samples_per_sec started updated duration sessions project host progress".split()
)
"""Those in `facts`."""


class Within(NamedTuple):
    """How far a question about all runs may go."""

    limit_s: float = 0.0
    """The engine ends it then; 0 for no limit."""
    since_day: int = 0
    """Only runs that were created on this day since the epoch or later; 0 for all."""

    @property
    def condition(self) -> str:
        """The condition for runs."""
        return f"created >= toDate({self.since_day})"

    @property
    def settings(self) -> str:
        """The end of the statement."""
        return f"{ONE_THREAD}, max_execution_time = {self.limit_s}"


WITHOUT_LIMIT: Final = Within()


@dataclass(frozen=True, slots=True)
class _Value:
    """One value of a run, as SQL; NULL where it is not of this kind, or there is none."""

    number: str = "NULL"
    text: str = "NULL"
    """As people type it, in lower case."""
    sorted: str = "NULL"
    """What a text is sorted by."""
    flag: str = "NULL"


class ListSql:
    """The parts of a SELECT for the runs that a query finds, in its order."""

    def __init__(self, query: RunQuery, search: Query, names: Names, within: Within = WITHOUT_LIMIT) -> None:
        """Translate `query`, whose text is `search`; `names` are those of all runs, by place."""
        self._names = names
        self._within = within
        self._needs_labels = False
        self._columns = dict.fromkeys(("run_id", "created", "version", "last_sign"))
        self._facts: dict[str, str] = {}
        self.where: list[str] = []
        if within.since_day:
            self.where.append(within.condition)
        if query.project is not None:
            self.where.append(f"{self._column('project')} = {literal(query.project)}")
        if query.statuses:
            named = ", ".join(map(literal, query.statuses))
            self.where.append(f"{self._status()} IN ({named})")
        self.where += [self._term(term) for term in search.terms]
        self.order = self._order(query.sort)
        hidden = "deleted" if query.archived else "deleted OR archived"
        self._hidden = (
            f"NOT ({hidden})"
            if self._needs_labels
            else f"run_id NOT IN (SELECT run_id FROM labels FINAL WHERE {hidden})"
        )

    def select(self, what: str, end: str) -> str:
        """Return the statement that selects `what`, with `end` after its conditions."""
        joined = f" ANY LEFT JOIN {_LABELS} USING (run_id)" if self._needs_labels else ""
        where = " AND ".join(f"({condition})" for condition in (self._hidden, *self.where))
        facts = (f"{value} AS {name}" for value, name in self._facts.items())
        runs = f"(SELECT {', '.join((*self._columns, *facts))} FROM runs FINAL) AS r"
        return f"SELECT {what} FROM {runs}{joined} WHERE {where} {end} {self._within.settings}"

    # ------------------------------------------------------------ values

    def _column(self, name: str) -> str:
        self._columns[name] = None
        return name

    def _status(self) -> str:
        for name in ("status", "step", IS_SILENT):
            self._column(name)
        return STATUS

    def _labelled(self, name: str, expression: str) -> str:
        self._needs_labels = True
        self._column(name)
        return expression

    def _values(self, prefix: str, name: str) -> list[_Value]:
        """Return what a run has under a name; several, if one that fits is enough."""
        known = name.casefold() if not prefix else ""
        if known == "name":
            shown = self._labelled("shown", _NAME)
            key = "lowerUTF8(run_id)"
            return [
                _Value(text=_TYPED.format(text=shown), sorted=_key(shown)),
                _Value(text=key, sorted=key),
            ]
        if known == "status":
            return [_Value(text=self._status())]
        if known == "alerts":
            critical, warnings = self._open_findings()
            named = [
                _Value(text=f"if({number} > 0, {literal(name)}, NULL)")
                for name, number in (("critical", critical), ("warning", warnings))
            ]
            total = f"{critical} + {warnings}"
            return [_Value(number=total, text=f"toString(toInt64({total}))"), *named]
        if known in ("tool", "format"):
            return [_Value(text=literal(OURS), sorted=literal(OURS))]
        found = [("field", known)] if known in _FIELDS else []
        found += candidates(prefix, name, self._names)
        if len(found) > _MOST_MEANT:
            raise QueryError(f"{name!r} is the end of {len(found)} names; write more of it")
        return [self._first_of([self._fact(*one) for one in found])] if found else []

    def _open_findings(self) -> tuple[str, str]:
        """Return the numbers of open critical findings and warnings."""
        found = [self._fact("summary", f"findings_{name}").number for name in ("critical", "warning")]
        return f"ifNull({found[0]}, 0)", f"ifNull({found[1]}, 0)"

    def _fact(self, place: str, name: str) -> _Value:
        kinds = self._names[place].get(name, ())
        number, whole, flag, text = (
            self._read(f"facts.`{value_path(kind, place, name)}`.:{kind}")
            if kind in kinds
            else f"CAST(NULL, 'Nullable({kind})')"
            for kind in KINDS.values()
        )
        return _Value(
            number=f"coalesce({number}, toFloat64({whole}))",
            text=f"coalesce({_TYPED.format(text=text)}, toString({whole}), toString({flag}), printf('%g', {number}))",
            sorted=_key(text),
            flag=f"toFloat64({flag})",
        )

    def _read(self, value: str) -> str:
        # Inside the subquery: outside of it all values of a run would be read.
        return self._facts.setdefault(value, f"fact_{len(self._facts)}")

    def _first_of(self, values: Sequence[_Value]) -> _Value:
        if len(values) == 1:
            return values[0]

        def first(part: str) -> str:
            pairs = (f"isNotNull({value.text}), {getattr(value, part)}" for value in values)
            return f"multiIf({', '.join(pairs)}, NULL)"

        return _Value(*map(first, ("number", "text", "sorted", "flag")))

    # ------------------------------------------------------------ conditions

    def _term(self, term: Term) -> str:
        holds = self._word(term.text) if isinstance(term, Word) else self._compared(term)
        return f"NOT ({holds})" if term.negated else holds

    def _word(self, word: str) -> str:
        name, tags = self._labelled("shown", _NAME), self._labelled("tagged", _TAGS)
        searched, text = self._column("searched"), literal(word)
        found = [f"position({searched}, {text}) > 0"]
        found += [f"position({one}, {text}, position({one}, {_BETWEEN})) > 0" for one in (name, tags)]
        if "*" in word or "?" in word:
            whole = literal(f"(?s)(^|{BETWEEN}){_pattern(word)}($|{BETWEEN})")
            texts = [searched, *(_TYPED.format(text=one) for one in (name, tags))]
            found += [f"match({one}, {whole})" for one in texts]
        return " OR ".join(found)

    def _compared(self, term: Comparison) -> str:
        if term.name == "tag" and not term.prefix:
            return self._tag(term)
        values = self._values(term.prefix, term.name)
        if term.sign == "!=":
            there = " OR ".join(f"isNotNull({value.text})" for value in values)
            return f"({there}) AND NOT ({_any(_equal(value, term) for value in values)})" if values else "0"
        return _any(_is_so(value, term) for value in values)

    def _tag(self, term: Comparison) -> str:
        tags = self._labelled("tagged", _TAGS)
        start = f"position({tags}, {_BETWEEN})"
        if term.sign == ":":
            return f"position({tags}, {literal(term.text)}, {start}) > 0" if term.text else f"{tags} != ''"
        whole = f"position({tags}, {literal(f'{BETWEEN}{term.text}{BETWEEN}')}, {start}) > 0"
        if term.sign == "!=":
            return f"{tags} != '' AND NOT ({whole})"
        return whole if term.sign == "=" else "0"

    # ------------------------------------------------------------ order

    def _order(self, by: str) -> str:
        name, prefix, is_down = split_order(by)
        down = " DESC" if is_down else ""
        if not prefix and name == "updated":
            return f"last_sign{down}, {_LAST}"
        if not prefix and name == "status":
            known = ", ".join(map(quote, STATUSES))
            return f"indexOf([{known}], {self._status()}){down}, {_LAST}"
        if not prefix and name == "alerts":
            critical, warnings = self._open_findings()
            return f"{critical}{down}, {warnings}{down}, {_LAST}"
        if not prefix and name == "tag":
            tags = self._labelled("tagged", _TAGS)
            return f"{tags} = '', substringIndex({tags}, {_BETWEEN}, 1){down}, {_LAST}"
        values = self._values(prefix, name)
        if not values:
            self.kind = str(MISSING)
            return _LAST
        value = values[0]
        number = f"coalesce({value.number}, {value.flag})"
        odd = f"{value.sorted} = {quote(NOT_FINITE)}"
        self.kind = f"multiIf(isNotNull({number}), 0, isNull({value.sorted}), {MISSING}, {odd}, 2, 1)"
        return f"{self.kind}, ifNull({number}, 0){down}, ifNull({value.sorted}, ''){down}, {_LAST}"

    kind: str = "0"
    """Whether the value that is sorted by is a number, a text, not finite or missing, as SQL."""


_LAST: Final = "last_sign DESC, run_id"


def _key(text: str) -> str:
    return f"substringIndex({text}, {_BETWEEN}, 1)"


def _any(conditions: object) -> str:
    return " OR ".join(f"ifNull({one}, 0)" for one in conditions) or "0"  # type: ignore[attr-defined]


def _is_so(value: _Value, term: Comparison) -> str:
    if term.sign == "=" or (term.sign == ":" and (term.day is not None or term.name == "status")):
        return _equal(value, term)
    if term.sign == ":":
        return (
            f"position({value.text}, {literal(term.text)}) > 0" if term.text else f"isNotNull({value.text})"
        )
    sign = {">": ">=", "<=": "<"}.get(term.sign, term.sign) if term.day is not None else term.sign
    return "0" if term.bound is None else f"{value.number} {sign} {term.bound!r}"


def _equal(value: _Value, term: Comparison) -> str:
    if term.day is not None:
        return f"{value.number} >= {term.day[0]!r} AND {value.number} < {term.day[1]!r}"
    is_same = f"{value.text} = {literal(term.text)}"
    if term.bound is None:
        return is_same
    near = (
        f"abs({value.number} - {term.bound!r}) <= 1e-9 * greatest(abs({value.number}), {abs(term.bound)!r})"
    )
    return f"if(isNotNull({value.number}), {near}, {is_same})"


def _pattern(word: str) -> str:
    """Return the regular expression of a word with * and ?, which stand for anything inside of one text."""
    parts = re.split(r"([*?]|\[!?\]?[^\]]*\])", word)
    others = {"*": f"[^{BETWEEN}]*", "?": f"[^{BETWEEN}]"}
    return "".join(
        others.get(part)
        or (f"[{_in_class(part)}]" if part.startswith("[") and len(part) > 2 else re.escape(part))
        for part in parts
    )


def _in_class(part: str) -> str:
    inner = part[1:-1]
    return ("^" if inner.startswith("!") else "") + inner.removeprefix("!").replace("\\", r"\\").replace(
        "[", r"\["
    )


def literal(text: str) -> str:
    """Return a text as SQL."""
    return quote(text.encode("utf-8", "replace"))
