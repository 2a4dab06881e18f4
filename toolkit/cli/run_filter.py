"""The terms of `--filter` and `--sort`: names of metrics and settings, compared with numbers and words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from toolkit.cli.run_list import ListedRun
from toolkit.core.run_search import ALIASES, Query, checked, matches, parse

HELP: Final = (
    "only runs for which every term holds, as in the dashboard: NAME>NUMBER (also >=, <, <=, =, !=) for a setting such "
    "as lr, a metric, best:METRIC, step, loss, duration or age in seconds; NAME:TEXT for a part of a text, such as "
    "tag:X, status:X, project:X, format:X; started>2d for the last two days, started:yesterday; any other word is a "
    "part of the name, or a glob"
)
_FIELDS: Final = ("name", "format", "status", "step", "loss", "started", "project")
_ORDERS: Final = ("age", *_FIELDS, "duration", "updated")
_MOST_NAMED: Final = 30


class SearchedRun:
    """A run of the list, as a search sees it."""

    def __init__(self, run: ListedRun, now: float) -> None:
        self._run = run
        self._now = now

    def texts(self) -> Iterable[str]:
        """Return the texts in which a plain word is looked for."""
        return (self._run.name,)

    def find(self, prefix: str, name: str) -> Sequence[Any]:
        """Return the values that the run has under a name."""
        run = self._run
        if prefix in ("best", "last"):
            found = run.evaluations.get(name)
            value = None if found is None else found.best if prefix == "best" else found.last
            value = run.last_value(name) if value is None and prefix == "last" else value
            return () if value is None else (value,)
        if not prefix and name == "tag":
            return run.tags
        if not prefix and name == "tool":
            return (run.format,)
        value = value_of(run, name, self._now)
        return () if value is None else (value,)


def selected(runs: Sequence[ListedRun], text: str, now: float) -> list[ListedRun]:
    """Return the runs for which every term of `text` holds.

    Raises:
        QueryError: a term makes no sense, or no run has a name.
    """
    query = query_of(text, now)
    if not query.terms:
        return list(runs)
    query = checked(query, _names_in(runs), lambda: (run.name for run in runs))
    return [run for run in runs if matches(query, SearchedRun(run, now))]


def query_of(text: str, now: float) -> Query:
    """Return the terms in `text`.

    Raises:
        QueryError: one makes no sense.
    """
    return parse(text, now=now)


def _names_in(runs: Iterable[ListedRun]) -> set[str]:
    names = {*_FIELDS, "tag", "tool", "age", "duration", "updated", *ALIASES.values()}
    for run in runs:
        names.update(run.last, run.evaluations, run.settings, run.config)
    return names


def value_of(run: ListedRun, name: str, now: float) -> Any:
    """Return what `name` is for a run: something that is listed, a setting, or a last value; None if it has none."""
    if name == "age":
        return run.age(now)
    if name == "updated":
        return run.last_sign
    if name == "duration":
        return None if run.started is None or run.last_sign is None else run.last_sign - run.started
    if name in _FIELDS:
        return getattr(run, name)
    # The configured value, not the last one: a learning rate decays.
    for given in (ALIASES.get(name, name), name):
        if given in run.settings:
            return run.settings[given]
    if name in run.evaluations:
        return run.evaluations[name].last
    if name in run.last:
        return run.last[name]
    if name in run.config:
        return run.config[name]
    # A setting may be called by the end of its name: ema_decay for train.ema_decay.
    ending = (value for full, value in run.config.items() if full.endswith(f".{name}"))
    found = next(ending, None)
    return run.last_value(name) if found is None else found


def sorted_runs(runs: Sequence[ListedRun], name: str, now: float, *, reverse: bool) -> list[ListedRun]:
    """Return the runs in the order of `name`, the smallest first; those without a value come last."""
    found = [(value_of(run, name, now), run) for run in runs]
    known = [(value, run) for value, run in found if _is_comparable(value)]
    numbers = all(isinstance(value, (int, float)) for value, _ in known)
    known.sort(key=lambda pair: pair[0] if numbers else str(pair[0]), reverse=reverse)
    return [run for _, run in known] + [run for value, run in found if not _is_comparable(value)]


def unknown_order(runs: Sequence[ListedRun], name: str, now: float) -> str | None:
    """Return why `name` is nothing to sort by, and what is; None if it is, or if there are no runs."""
    if not runs or name in _ORDERS or any(value_of(run, name, now) is not None for run in runs):
        return None
    known = sorted(_names_in(runs) - {"tag", "tool"})
    near = difflib.get_close_matches(name, [*_ORDERS, *known], n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    metrics = ", ".join([one for one in known if one not in _ORDERS][:_MOST_NAMED])
    return f"--sort {name}: no run has it.{hint} Allowed: {', '.join(_ORDERS)}; of these runs also {metrics}"


def _is_comparable(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and not math.isnan(value))
