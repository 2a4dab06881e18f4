"""The settings of the runs of a sweep as columns, and the runs with each value."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from toolkit.telemetry.runs import statistics as stats
from toolkit.telemetry.runs.settings import as_number, is_label, is_seed, level_text, setting_text

_MAX_KEYS: Final = 60
_MAX_KEYS_OF_MANY: Final = 25
_MANY_RUNS: Final = 1000
"""Settings that are tested, and those of many runs; of more, those with the most balanced values."""
FEW_VALUES: Final = 6
_FOR_QUARTERS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One setting, or several with one value of each for one of the other, for each counted run."""

    keys: tuple[str, ...]
    values: tuple[Any, ...]
    numbers: tuple[float, ...] | None
    """NaN for a missing value; None for a category."""

    def setting(self, rows: Sequence[int]) -> stats.Setting:
        """Return it for these runs, to be tested."""
        if self.numbers is not None:
            return stats.number_setting(np.array([self.numbers[row] for row in rows]))
        _, levels = np.unique([level_text(self.values[row]) for row in rows], return_inverse=True)
        missing = [self.values[row] is None for row in rows]
        return stats.level_setting(np.where(missing, -1, levels))


def equal_settings(configs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the settings that are equal in all runs, and those that only some recorded, all with one value."""
    names = dict.fromkeys(key for config in configs for key in config)
    constant: list[str] = []
    partly: list[str] = []
    for key in names:
        if is_label(key) or is_seed(key):
            continue
        known = [value for config in configs if (value := config.get(key)) is not None]
        if known and len(set(map(level_text, known))) == 1:
            (constant if len(known) == len(configs) else partly).append(key)
    return tuple(constant), tuple(partly)


def columns_of(configs: Sequence[Mapping[str, Any]]) -> tuple[list[Column], tuple[str, ...]]:
    """Return the settings that vary, and those that cannot be tested.

    A setting that some runs did not record varies only if the others have different values of it.
    """
    names = dict.fromkeys(key for config in configs for key in config)
    found: dict[tuple[float, ...], Column] = {}
    left_out = []
    for key in names:
        if is_label(key) or is_seed(key):
            continue
        values = tuple(config.get(key) for config in configs)
        texts = [level_text(value) for value in values]
        different = {text for text, value in zip(texts, values, strict=True) if value is not None}
        if len(different) < 2:
            continue
        numbers = _numbers(values)
        if numbers is None and len(different) > max(2, len(configs) // 3):
            left_out.append(key)
            continue
        pattern = _pattern(texts, numbers)
        same = found.get(pattern)
        if same is None:
            found[pattern] = Column(keys=(key,), values=values, numbers=numbers)
        else:
            # A number says more than the name of a variant that goes with it.
            first = same if same.numbers is not None or numbers is None else None
            found[pattern] = Column(
                keys=(*same.keys, key),
                values=first.values if first else values,
                numbers=first.numbers if first else numbers,
            )
    columns = list(found.values())
    most = _MAX_KEYS if len(configs) <= _MANY_RUNS else _MAX_KEYS_OF_MANY
    if len(columns) > most:
        columns.sort(key=lambda column: max(Counter(map(level_text, column.values)).values()))
        left_out += [key for column in columns[most:] for key in column.keys]
        columns = columns[:most]
    return columns, tuple(left_out)


def _pattern(texts: Sequence[str], numbers: Sequence[float] | None) -> tuple[float, ...]:
    """Return what is equal for settings that were always changed together."""
    if numbers is None or len(set(texts)) * 2 <= len(texts):
        order = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return tuple(order[text] for text in texts)
    # Nearly every run has its own value, so what counts is the order, or the reversed order.
    ranks = stats.mid_ranks(np.array([-math.inf if math.isnan(number) else number for number in numbers]))
    return min(tuple((0.5 + ranks).tolist()), tuple((len(ranks) + 1.5 - ranks).tolist()))


def _numbers(values: Sequence[Any]) -> tuple[float, ...] | None:
    numbers = [as_number(value) for value in values if value is not None]
    if not numbers or any(number is None for number in numbers):
        return None
    return tuple(math.nan if value is None else float(as_number(value) or 0.0) for value in values)


def configurations(columns: Sequence[Column], runs: int) -> list[list[int]]:
    """Return the runs of each configuration: those with equal settings are together."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row in range(runs):
        found[tuple(level_text(column.values[row]) for column in columns)].append(row)
    return list(found.values())


def groups_of(column: Column) -> list[tuple[str, list[int]]]:
    """Return labels and rows of the levels: each value, or a third or quarter of the runs if there are many.

    Runs without a value are in none of them.
    """
    if column.numbers is None:
        by_text: dict[str, list[int]] = defaultdict(list)
        for row, value in enumerate(column.values):
            if value is not None:
                by_text[setting_text(value)].append(row)
        return sorted(by_text.items(), key=lambda item: (-len(item[1]), item[0]))
    numbers = np.array(column.numbers)
    different = np.unique(numbers[~np.isnan(numbers)])
    groups: list[tuple[str, list[int]]] = []
    if len(different) <= FEW_VALUES:
        groups = [
            (number_text(column, value), np.flatnonzero(numbers == value).tolist()) for value in different
        ]
    else:
        parts = 3 if len(numbers) < _FOR_QUARTERS else 4
        edges = np.quantile(numbers[~np.isnan(numbers)], np.linspace(0.0, 1.0, parts + 1), method="nearest")
        for place in range(parts):
            low, high = edges[place], edges[place + 1]
            inside = (numbers >= low if place == 0 else numbers > low) & (numbers <= high)
            rows = np.flatnonzero(inside).tolist()
            if rows:
                label = f"{number_text(column, numbers[rows].min())} to {number_text(column, numbers[rows].max())}"
                groups.append((label, rows))
    return groups


def number_text(column: Column, number: float) -> str:
    """Return a value of a numeric setting as text."""
    whole = all(isinstance(value, int) for value in column.values if value is not None)
    return setting_text(int(number) if whole else float(number))
