"""The search language of the Runs page and of `telemetry ls --filter`: words, tag:x, -word, "a phrase", lr>1e-4."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from toolkit.telemetry.runfolder.untrusted import is_number

MAX_QUERY_LENGTH: Final = 2_000

ALIASES: Final = {
    "lr": "learning_rate",
    "rank": "lora_rank",
    "bs": "batch_size",
    "steps": "max_steps",
    "tags": "tag",
    "created": "started",
    "last_update": "updated",
}
"""Short names of settings and fields."""
DATES: Final = ("started", "updated")
_PREFIXES: Final = ("best", "last", "config", "summary")
_WORDS: Final = ("name", "tag", "status", "project", "host", "tool", "format")
"""Fields that are text."""


class QueryError(ValueError):
    """Invalid search; the message says which part and what is allowed."""


class Searched(Protocol):
    """A run, as a search sees it."""

    def texts(self) -> Iterable[str]:
        """Return the texts in which a plain word is looked for."""

    def find(self, prefix: str, name: str) -> Sequence[Any]:
        """Return the values that the run has under a name, none if it has not got it.

        `prefix` is `best`, `last`, `config` or `summary` if only that is meant.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A text in the run's name, key, tags, project or host; with * or ? the pattern of a whole name."""

    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison with what the run has under a name; a run without that does not match."""

    name: str
    """Lower case unless the run has names of its own in upper case."""
    sign: str
    """`:` looks for a part of a text."""
    text: str
    """What it is compared with, as it was typed."""
    prefix: str = ""
    bound: float | None = None
    """What it is compared with, if that is a number; for dates, seconds."""
    day: tuple[float, float] | None = None
    """Of a date: when it begins and ends."""
    typed: str = ""
    negated: bool = False


Term = Word | Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search: every term must hold."""

    terms: tuple[Term, ...] = ()


def parse(text: str, *, statuses: Collection[str] = (), now: float | None = None) -> Query:
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
        if (term := _term(found, statuses, now)) is not None:
            terms.append(term)
    return Query(terms=tuple(terms))


def matches(query: Query, run: Searched) -> bool:
    """Return whether every term of `query` holds for `run`."""
    return all(_holds(term, run) is not term.negated for term in query.terms)


def checked(query: Query, names: Collection[str], has_text: Callable[[str], bool]) -> Query:
    """Return `query` if every name in it is one of `names`.

    `a=b` and `a:b` with an unknown name are taken as a word if `has_text`: a run has it in its name.

    Raises:
        QueryError: a name is unknown; the message has the most similar ones.
    """
    known = {name.casefold() for name in names}
    ends = {name.rpartition(".")[2] for name in known} | {name.removeprefix("epoch/") for name in known}
    terms: list[Term] = []
    for term in query.terms:
        if isinstance(term, Word) or term.name.casefold() in known or term.name.casefold() in ends:
            terms.append(term)
        elif term.sign in ("=", ":") and has_text(term.typed.casefold()):
            terms.append(Word(text=term.typed.casefold(), negated=term.negated))
        else:
            raise QueryError(_unknown(term.name, names))
    return Query(terms=tuple(terms))


def of_team(text: str, team: str) -> str | None:
    """Return a search for one team's store: without `team:`, and `project:` without the team; None if it finds none."""
    kept = []
    for found in _PART.finditer(text):
        name, _, value = found[0].lstrip("-").casefold().replace("=", ":").partition(":")
        if name != "team":
            kept.append(found[0].replace(f"{team}/", "", 1) if name == "project" else found[0])
        elif (value.strip('"') in team.casefold()) == found[0].startswith("-"):
            return None
    return " ".join(kept)


def completions(text: str, names: Iterable[str], *, limit: int = 8) -> list[str]:
    """Return names that complete the last word of a search, those that begin with it first."""
    last = re.split(r"[\s:]", text)[-1].lstrip("-")
    if not last or re.search(r'[<>=!"]', last):
        return []
    start = last.casefold()
    every = sorted({*names, *ALIASES}, key=lambda name: (len(name), name))
    begins = [name for name in every if name.casefold().startswith(start)]
    contains = [name for name in every if start in name.casefold() and name not in begins]
    found = [name for name in (*begins, *contains) if name.casefold() != start]
    return found[:limit]


def completed(text: str, name: str) -> str:
    """Return a search whose last word is replaced by `name`."""
    kept = re.match(r"(?s).*[\s:]", text)
    sign = "-" if text[kept.end() if kept else 0 :].startswith("-") else ""
    return f"{kept[0] if kept else ''}{sign}{name}"


def _unknown(name: str, names: Iterable[str]) -> str:
    every = {known.casefold(): known for known in (*names, *ALIASES)}
    # The end of a joined name is what people type.
    every.update({known.rpartition(".")[2].casefold(): known for known in names})
    near = difflib.get_close_matches(name.casefold(), every, n=3, cutoff=0.6)
    near += [known for known in every if name.casefold() in known and len(name) > 1][: 3 - len(near)]
    nearest = list(dict.fromkeys(every[known] for known in near))
    did_you_mean = f"; did you mean {' or '.join(nearest)}?" if nearest else "; no run has it"
    return f"unknown name {_shown(name)}{did_you_mean}"


# Alternatives are tried in this order; together they match any text except whitespace.
_PART: Final = re.compile(
    r"""
    (?P<negated>-?)
    (?:
        "(?P<phrase>[^"]*)"
      | (?:(?P<prefix>best|last|config|summary):)?
        (?P<number>[^\s"<>=!:]*)
        (?:\s*(?P<sign><=|>=|<|>)\s*|(?P<equal>!=|==|=))
        (?:"(?P<quoted_bound>[^"]*)"|(?P<bound>[^\s"<>]*))
      | (?P<field>[A-Za-z_][\w./@-]*):(?:"(?P<quoted>[^"]*)"|(?P<value>[^\s"]*))
      | (?P<open>"[^"]*\Z)
      | (?P<word>[^\s"<>]+)
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)

_DIGITS: Final = re.compile("[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(r"(?:(?:\d+\.?\d*|\.\d+)[smhdw])+", re.ASCII | re.IGNORECASE)
_DURATION_PART: Final = re.compile(r"([\d.]+)([smhdw])", re.ASCII | re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d{1,2}(?:-\d{1,2}(?:[T ]\d{1,2}:\d{2})?)?", re.ASCII)
SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}

_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ALLOWED: Final = {
    "duration": "a duration such as 90s, 15m, 1h30m or 2d",
    "progress": "a percentage such as 50% or 0.5",
    **dict.fromkeys(DATES, "a time such as 2d (the last two days), 2026-11-01, today or yesterday"),
}
_LIKE: Final = {
    "tag": "baseline",
    "status": "running",
    "project": "faces",
    "host": "node1",
    "tool": "tensorboard",
    "alerts": "critical",
    "started": "yesterday",
    "updated": "today",
    "best": "val_loss",
    "last": "val_loss",
}


def _term(found: re.Match[str], statuses: Collection[str], now: float | None) -> Term | None:
    negated = bool(found["negated"])
    if found["phrase"] is not None:
        return Word(text=found["phrase"].casefold(), negated=negated) if found["phrase"] else None
    sign = found["sign"] or found["equal"]
    if sign is not None:
        if not found["number"] and found["equal"]:
            # A name such as `=v2` is a word.
            return Word(text=found[0].removeprefix("-").casefold(), negated=negated)
        text = found["quoted_bound"] if found["quoted_bound"] is not None else found["bound"]
        return _comparison(found, found["number"], "=" if sign == "==" else sign, text, statuses, now)
    if found["field"] is not None:
        value = found["quoted"] if found["quoted"] is not None else found["value"]
        return _field(found, found["field"], value, statuses, now)
    if found["open"] is not None:
        raise QueryError(f"the quote before {_shown(found['open'][1:])} is not closed")
    if found[0] == "-":
        raise QueryError("a single - means nothing; write -word to exclude runs with that word")
    return Word(text=found["word"].casefold(), negated=negated)


def _field(
    found: re.Match[str], field: str, value: str, statuses: Collection[str], now: float | None
) -> Term:
    name = field.casefold()
    if not value:
        raise QueryError(f"`{_cut(field)}:` needs a value, e.g. {_cut(field)}:{_LIKE.get(name, 'text')}")
    if name in _PREFIXES:
        # Runs that have it at all.
        return Comparison(
            name=value, prefix=name, sign=":", text="", typed=found[0], negated=bool(found["negated"])
        )
    return _comparison(found, field, ":", value, statuses, now)


def _comparison(
    found: re.Match[str], given: str, sign: str, text: str, statuses: Collection[str], now: float | None
) -> Comparison:
    if not given:
        raise QueryError(f"`{sign}` needs a name before it, e.g. loss{sign}0.2")
    folded = given.casefold()
    prefix = (found["prefix"] or "").casefold()
    name = (
        ALIASES.get(folded, folded if folded in _ALLOWED or folded in _WORDS else given)
        if not prefix
        else given
    )
    if name == "status" and statuses and text.casefold() not in statuses:
        raise QueryError(f"unknown status {_shown(text)}; known: {', '.join(statuses)}")
    typed = found[0].removeprefix("-") if found["negated"] else found[0]
    term = Comparison(
        name=name, prefix=prefix, sign=sign, text=text.casefold(), typed=typed, negated=bool(found["negated"])
    )
    if name in DATES and not prefix:
        return _with_date(term, given, text, now)
    bound = _bound(name, text)
    if bound is None and (sign in _SIGNS or (name in _ALLOWED and sign != ":")):
        allowed = _ALLOWED.get(name, "a number such as 0.2 or 1e-4")
        raise QueryError(f"`{_cut(given)}{sign}` needs {allowed}, got {_shown(text) if text else 'nothing'}")
    if not text and sign in ("=", "!="):
        raise QueryError(f"`{_cut(given)}{sign}` needs a value, got nothing")
    return replace(term, bound=bound)


def _bound(name: str, text: str) -> float | None:
    value = math.nan
    if _NUMBER.fullmatch(text):
        value = float(text)
        # Progress is at most 1, so a number above 1 is a percentage.
        if name == "progress" and value > 1:
            value /= 100
    elif name == "progress" and text.endswith("%") and _NUMBER.fullmatch(text[:-1]):
        value = float(text[:-1]) / 100
    elif name == "duration" and _DURATION.fullmatch(text):
        value = seconds_in(text)
    return value if math.isfinite(value) else None


def seconds_in(text: str) -> float:
    """Return how long a text such as `1h30m` or `2d` is."""
    return sum(float(number) * SECONDS[unit.lower()] for number, unit in _DURATION_PART.findall(text))


def _with_date(term: Comparison, given: str, text: str, now: float | None) -> Comparison:
    local = datetime.now() if now is None else datetime.fromtimestamp(now)  # noqa: DTZ005, DTZ006 - local days
    if _DURATION.fullmatch(text) and term.sign != ":":
        age_s = seconds_in(text)
        if age_s < 1e10:
            return replace(term, bound=local.timestamp() - age_s)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    day = timedelta(days=1)
    named = {"today": (midnight, midnight + day), "yesterday": (midnight - day, midnight)}
    begin_end = named.get(text.casefold()) or (_date_in(text) if _DATE.fullmatch(text) else None)
    if begin_end is None:
        raise QueryError(
            f"`{_cut(given)}{term.sign}` needs {_ALLOWED[term.name]}, got {_shown(text) if text else 'nothing'}"
        )
    begin, end = (one.timestamp() for one in begin_end)
    return replace(term, bound=end if term.sign == "<=" else begin, day=(begin, end))


def _date_in(text: str) -> tuple[datetime, datetime] | None:
    """Return when a date begins and ends: a month, a day, or a minute, in local time."""
    numbers = [int(part) for part in re.split(r"[-T :]", text)]
    try:
        if len(numbers) == 2:
            begin = datetime(numbers[0], numbers[1], 1)  # noqa: DTZ001 - local time is what people type
            later = begin + timedelta(days=32)
            return begin, later.replace(day=1)
        begin = datetime(*numbers)  # type: ignore[arg-type]  # noqa: DTZ001
        return begin, begin + (timedelta(days=1) if len(numbers) == 3 else timedelta(minutes=1))
    except (ValueError, OverflowError):
        return None


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _holds(term: Term, run: Searched) -> bool:
    if isinstance(term, Word):
        is_pattern = "*" in term.text or "?" in term.text
        return any(
            term.text in text.casefold() or (is_pattern and fnmatchcase(text.casefold(), term.text))
            for text in run.texts()
        )
    values = run.find(term.prefix, term.name)
    if term.sign == "!=":
        return bool(values) and not any(_is_equal(value, term) for value in values)
    return any(_is_so(value, term) for value in values)


def _is_so(value: Any, term: Comparison) -> bool:
    if term.sign == "=":
        return _is_equal(value, term)
    if term.sign == ":":
        if term.day is not None:
            return _is_equal(value, term)
        if term.name == "status":
            return str(value).casefold() == term.text
        return term.text in text_of(value).casefold()
    if not is_number(value) or term.bound is None:
        return False
    # A day counts from its beginning: `started>2026-11-01` is that day or later, `started<=2026-11-01` that day too.
    sign = {">": ">=", "<=": "<"}.get(term.sign, term.sign) if term.day is not None else term.sign
    return _SIGNS[sign](value, term.bound)


def _is_equal(value: Any, term: Comparison) -> bool:
    if term.day is not None:
        return isinstance(value, (int, float)) and term.day[0] <= value < term.day[1]
    if is_number(value) and term.bound is not None:
        return math.isclose(value, term.bound, rel_tol=1e-9)
    return text_of(value).casefold() == term.text


def natural_key(text: str) -> str:
    """Return a key that puts run-2 before run-10, whatever their case; it sorts the same as UTF-8."""
    # A number sorts before any text that goes on, and by its length first; int() refuses thousands of digits.
    return _DIGITS.sub(lambda found: f"\x02{len(digits := found[0].lstrip('0')):05}{digits}", text.casefold())


def text_of(value: Any) -> str:
    """Return a value as people type it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
