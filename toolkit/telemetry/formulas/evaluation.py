"""A formula over records as they come, one or many at a time; needs nothing but Python.

The one rule of alignment: a part of a formula has a value at each record that has one of its metrics, once each of them
was logged; a metric that this record lacks has its last known value. A function that looks at several records counts
those of its own metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from toolkit.telemetry.formulas.formula import Call, Formula, FormulaError, Name, Node, Number
from toolkit.telemetry.formulas.functions import SCALARS, TAKES_MISSING, Follower, follower_of

Setting = Callable[[str], float | None]
"""Returns the setting with a name as a number; None if the run has none."""
Metrics = Mapping[str, tuple[list[int], list[float]]]
"""Of each metric the records that have it, as rising numbers, and its values."""
Places = Callable[[str, list[int]], list[float]]
"""Returns `step`, `epoch`, `time` or `elapsed` of these records."""


def no_settings(name: str) -> float | None:  # noqa: ARG001
    """Return None: nothing is known of the run's settings."""
    return None


def nowhere(name: str, rows: list[int]) -> list[float]:  # noqa: ARG001
    """Return NaN for each record: nothing is known of where it is."""
    return [math.nan] * len(rows)


class Evaluation:
    """Follows one run."""

    def __init__(self, formula: Formula, setting: Setting = no_settings) -> None:
        """Start before the first record. Raises FormulaError if the run does not have a setting that it needs."""
        self._settings: dict[str, _Constant] = {}
        self._followers: list[Follower] = []
        self._root = self._part(formula.root)
        for name, one in formula.all_of("setting").items():
            value = setting(name)
            if value is None:
                raise FormulaError(f"The run has no setting {name!r} that is a number (character {one.at}).")
            self._settings[name].value = value

    def take(self, metrics: Metrics, places: Places = nowhere) -> tuple[list[int], list[float]]:
        """Return the records among these, all of one session, at which the formula has a value, and its values."""
        self._root.take(metrics, places)
        return self._root.rows, self._root.values

    def sides(self, at: int) -> list[float]:
        """Return what the outermost operator joins at one of the records that `take` returned last."""
        return [values[at] for values in self._root.given]

    def restart(self) -> None:
        """Begin another session."""
        for follower in self._followers:
            follower.restart()

    def use_settings(self, setting: Setting) -> None:
        """Take other values of its settings; one that is not there stays."""
        for name, part in self._settings.items():
            value = setting(name)
            part.value = part.value if value is None else value

    def _part(self, node: Node) -> _Part:
        if isinstance(node, Number):
            return _Constant(node.value)
        if isinstance(node, Name):
            if node.kind == "setting":
                return self._settings.setdefault(node.name, _Constant(math.nan))
            return _Metric(node.name) if node.kind == "metric" else _Place(node.name)
        parts = [self._part(part) for part in node.parts]
        if node.function in SCALARS:
            return _Applied(node, parts)
        follower = follower_of(node)
        self._followers.append(follower)
        return _Followed(follower, parts[0])


class _Part:
    """A part of a formula: which of the newest records gave it a value, and what was known before them."""

    is_free = False
    """Whether it needs no metric, and so has a value wherever it is asked for."""
    given: Any = ()

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.values: list[float] = []
        self._before: float | None = None

    def take(self, metrics: Metrics, places: Places) -> None:
        raise NotImplementedError

    def at(self, rows: list[int]) -> list[Any]:
        """Return its last known value at each of `rows`, among which are its own; None where there is none."""
        if rows == self.rows:
            return self.values
        own, known = dict(zip(self.rows, self.values, strict=True)), self._before
        return [known := own.get(row, known) for row in rows]

    def _give(self, rows: list[int], values: list[float]) -> None:
        if self.values:
            self._before = self.values[-1]
        self.rows, self.values = rows, values


class _Constant(_Part):
    is_free = True

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def take(self, metrics: Metrics, places: Places) -> None:
        pass

    def at(self, rows: list[int]) -> list[float]:
        return [self.value] * len(rows)


class _Place(_Part):
    is_free = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._places: Places = nowhere

    def take(self, metrics: Metrics, places: Places) -> None:  # noqa: ARG002
        self._places = places

    def at(self, rows: list[int]) -> list[float]:
        return self._places(self._name, rows)


class _Metric(_Part):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def take(self, metrics: Metrics, places: Places) -> None:  # noqa: ARG002
        self._give(*metrics.get(self._name, ([], [])))


class _Applied(_Part):
    def __init__(self, node: Call, parts: list[_Part]) -> None:
        super().__init__()
        self._apply = SCALARS[node.function]
        self._parts = parts
        self._takes_missing = node.function in TAKES_MISSING
        self._owners = [part for part in parts if not part.is_free]
        self.is_free = not self._owners
        self.given: list[list[Any]] = []

    def take(self, metrics: Metrics, places: Places) -> None:
        for part in self._parts:
            part.take(metrics, places)
        if self.is_free:
            return
        # One or two, as operators have parts.
        rows, others = self._owners[0].rows, self._owners[-1].rows
        if rows != others:
            rows = sorted({*rows, *others})
        given = [part.at(rows) for part in self._parts]
        if None in given[0] or None in given[-1]:
            if self._takes_missing:
                given = [[0.0 if value is None else value for value in values] for values in given]
            else:
                known = [place for place, pair in enumerate(zip(*given, strict=True)) if None not in pair]
                rows = [rows[place] for place in known]
                given = [[values[place] for place in known] for values in given]
        self.given = given
        self._give(rows, list(map(self._apply, *given)))

    def at(self, rows: list[int]) -> list[Any]:
        if not self.is_free:
            return super().at(rows)
        return list(map(self._apply, *(part.at(rows) for part in self._parts)))


class _Followed(_Part):
    def __init__(self, follower: Follower, part: _Part) -> None:
        super().__init__()
        self._follower, self._part = follower, part

    def take(self, metrics: Metrics, places: Places) -> None:
        self._part.take(metrics, places)
        rows, found = self._part.rows, list(map(self._follower.take, self._part.values))
        if None in found:
            rows = [row for row, value in zip(rows, found, strict=True) if value is not None]
        self._give(rows, [value for value in found if value is not None])
