"""A formula over a whole run, from what a list of runs knows: last and best values, settings, steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.formulas.formula import Call, FormulaError, Name, Node, Number, parse
from toolkit.telemetry.formulas.functions import SCALARS, TAKES_MISSING
from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runs.settings import as_number

_FIELDS: Final = {"time": "updated", "elapsed": "duration"}
_OF_LIST: Final = "last, best, min and max without a number of records"

Evaluations = Mapping[str, Evaluation]
Find = Callable[[str, str], Sequence[Any]]
"""Returns what a run has under a prefix such as `config` and a name."""


def formula_value(text: str, evaluations: Evaluations, find: Find) -> float | None:
    """Return the formula for one run; a metric without a function is its last value. None if the run lacks something.

    Raises:
        FormulaError: it is no formula, or it needs whole curves, which a list does not read.
    """
    return _value(parse(text).root, evaluations, find)


def _value(node: Node, evaluations: Evaluations, find: Find) -> float | None:
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Name):
        name = _FIELDS.get(node.name, node.name) if node.kind == "place" else node.name
        found = find("config" if node.kind == "setting" else "", name)
        return _number(found[0]) if found else None
    if node.function in SCALARS:
        given = [_value(part, evaluations, find) for part in node.parts]
        if node.function in TAKES_MISSING:
            given = [0.0 if value is None else value for value in given]
        return None if None in given else SCALARS[node.function](*given)
    return _of_curve(node, evaluations, find)


def _of_curve(call: Call, evaluations: Evaluations, find: Find) -> float | None:
    (part,) = call.parts
    is_known = call.window is None and call.function in ("last", "best", "min", "max")
    if not is_known or not isinstance(part, Name):
        raise FormulaError(
            f"The table of runs cannot use {call.function}() here: it knows {_OF_LIST}, of one metric."
        )
    if call.function == "last":
        found = find("last", part.name)
        return _number(found[0]) if found else None
    evaluation = evaluations.get(part.name)
    wanted = call.direction or call.function
    return evaluation.best if evaluation is not None and evaluation.direction == wanted else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float) else as_number(value)
