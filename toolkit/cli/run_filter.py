"""The terms of `--filter` and `--sort`: names of metrics and settings, compared with numbers and words."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from toolkit.cli.run_list import ListedRun

_TERM: Final = re.compile(r"(?P<name>[^\s<>=!:]+?)(?P<sign><=|>=|!=|==|=|<|>|:)(?P<value>\S+)")
_SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
HELP: Final = (
    "only runs for which every term holds: NAME>NUMBER (also >=, <, <=, =, !=) for a metric, a setting, step, loss or "
    "age in seconds; tag:X, status:X, project:X or format:X; any other word is a part of the name, or a glob"
)


class FilterError(ValueError):
    """A term that makes no sense."""


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on a run."""

    name: str
    sign: str
    value: str

    def holds(self, run: ListedRun, now: float) -> bool:
        """Return whether `run` meets it; a run without the value does not."""
        if not self.sign:
            return self.value in run.name or fnmatchcase(run.name, self.value)
        if self.sign == ":":
            return self.value in _words(run, self.name)
        found = value_of(run, self.name, now)
        wanted = _number(self.value)
        if wanted is None:
            equal = found is not None and str(found) == self.value
            return found is not None and (not equal if self.sign == "!=" else equal)
        return isinstance(found, (int, float)) and _SIGNS[self.sign](float(found), wanted)


def terms_of(text: str) -> list[Term]:
    """Return the terms in `text`.

    Raises:
        FilterError: one makes no sense.
    """
    terms = []
    for word in text.split():
        match = _TERM.fullmatch(word)
        if match is None:
            if re.search(r"[<>=!]", word):
                raise FilterError(f"{word!r} is not NAME>NUMBER, such as loss<0.5")
            terms.append(Term("", "", word))
            continue
        term = Term(match["name"], match["sign"], match["value"])
        if term.sign == ":" and term.name not in ("tag", "status", "project", "format"):
            raise FilterError(f"{word!r}: only tag, status, project and format are compared with ':'")
        if term.sign in ("<", "<=", ">", ">=") and _number(term.value) is None:
            raise FilterError(f"{word!r}: {term.value!r} is not a number")
        terms.append(term)
    return terms


def value_of(run: ListedRun, name: str, now: float) -> Any:
    """Return what `name` is for a run: something that is listed, a last value, or a setting; None if it has none."""
    if name == "age":
        return run.age(now)
    if name in ("name", "format", "status", "step", "loss", "started", "project"):
        return getattr(run, name)
    if name in run.last:
        return run.last[name]
    if name in run.config:
        return run.config[name]
    # A setting may be called by the end of its name: lr for train.lr.
    return next((value for full, value in run.config.items() if full.endswith(f".{name}")), None)


def sorted_runs(runs: Sequence[ListedRun], name: str, now: float, *, reverse: bool) -> list[ListedRun]:
    """Return the runs in the order of `name`, the smallest first; those without a value come last."""
    found = [(value_of(run, name, now), run) for run in runs]
    known = [(value, run) for value, run in found if _is_comparable(value)]
    numbers = all(isinstance(value, (int, float)) for value, _ in known)
    known.sort(key=lambda pair: pair[0] if numbers else str(pair[0]), reverse=reverse)
    return [run for _, run in known] + [run for value, run in found if not _is_comparable(value)]


def _is_comparable(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and not math.isnan(value))


def _words(run: ListedRun, name: str) -> Sequence[str]:
    if name == "tag":
        return run.tags
    value = getattr(run, name)
    return () if value is None else (value,)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
