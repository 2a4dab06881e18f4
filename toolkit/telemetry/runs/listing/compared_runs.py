"""Several runs side by side: the metrics that they have under any name, the groups that they form, their figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from toolkit.telemetry.diagnostics.metric_aliases import metric_key
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES
from toolkit.telemetry.runfolder.metrics import metric_direction
from toolkit.telemetry.runs.formatting import short_number
from toolkit.telemetry.runs.listing.run_table import differences_of
from toolkit.telemetry.runs.settings import (
    as_number,
    differing_settings,
    is_seed,
    level_text,
    setting_names,
    setting_text,
)
from toolkit.telemetry.runs.store import MetricInfo, RunCard, RunStore, Series

BY_TAG: Final = "tag"
ALL_BUT_SEED: Final = "all but the seed"
FIGURES: Final = ("last", "best", "mean of last 10 %", "median")
NOT_FINITE: Final = "NaN or infinite"


def joined_metrics(infos: Mapping[str, Sequence[MetricInfo]]) -> dict[str, dict[str, str]]:
    """Return the metrics of several runs: by the name that most runs give it, each run's own name of it.

    Of two metrics of one run that mean the same, the one with more values counts.
    """
    names = Counter(info.name for of_run in infos.values() for info in of_run)
    own: dict[str, dict[str, MetricInfo]] = {}
    for run, of_run in infos.items():
        for info in of_run:
            of_key = own.setdefault(metric_key(info.name), {})
            if run not in of_key or info.count > of_key[run].count:
                of_key[run] = info
    joined = {}
    for key, of_key in own.items():
        shown = max((info.name for info in of_key.values()), key=lambda name: (names[name], name == key))
        joined[shown] = {run: info.name for run, info in of_key.items()}
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs with the same settings, or with the same tag."""

    label: str
    runs: tuple[str, ...]
    """Their keys."""


def group_choices(cards: Sequence[RunCard]) -> list[str]:
    """Return by what these runs can be grouped: all but the seed, their tags, and each setting that differs."""
    settings = differing_settings([card.config for card in cards])
    first = [ALL_BUT_SEED] if len(grouped(cards, [ALL_BUT_SEED])) < len(cards) and settings else []
    return [*first, *([BY_TAG] if any(card.tags for card in cards) else []), *settings]


def grouped(cards: Sequence[RunCard], by: Sequence[str]) -> list[RunGroup]:
    """Return the runs by the values of all that `by` names, in the order of these; a run is in a group of each tag."""
    names = [name for name in by if name not in (ALL_BUT_SEED, BY_TAG)]
    if ALL_BUT_SEED in by:
        varied = set(differing_settings([card.config for card in cards]))
        ordered_by_use = [
            name for name in differences_of(cards).every if name in varied and not is_seed(name)
        ]
        names = list(dict.fromkeys([*names, *ordered_by_use]))
    shown = setting_names(names)
    members: dict[tuple[str, ...], list[str]] = {}
    labels: dict[tuple[str, ...], str] = {}
    for card in cards:
        # A text such as 1e-4 and the number are one value.
        values = [[(level_text(card.config.get(name)), name)] for name in names]
        tags = [[(tag, "") for tag in card.tags or ("no tag",)]] if BY_TAG in by else []
        for found in product(*tags, *values):
            key = tuple(level for level, _ in found)
            texts = [
                level
                if not name
                else setting_text(card.config.get(name))
                if len(found) == 1
                else f"{shown[name]} {setting_text(card.config.get(name))}"
                for level, name in found
            ]
            labels.setdefault(key, ", ".join(texts) or "all runs")
            members.setdefault(key, []).append(card.key)
    times = Counter(labels.values())
    ordered = sorted(members, key=lambda key: [(_number_of(level), level) for level in key])
    return [
        # Two values that read the same to three digits are shown with all of their digits.
        RunGroup(
            label=labels[key] if times[labels[key]] == 1 else f"{labels[key]} ({', '.join(key)})",
            runs=tuple(members[key]),
        )
        for key in ordered
    ]


def _number_of(level: str) -> float:
    number = as_number(level)
    return math.inf if number is None else number


def named_choices(asked: Sequence[str], choices: Sequence[str]) -> list[str]:
    """Return those of `asked` that runs can be grouped by; a link may have the name that a configuration gives it."""
    names = [one if one in choices else USUAL_NAMES.get(one, "") for one in asked]
    return [name for name in names if name in choices]


# ---------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """A run, or a group of runs, with its figures as texts; those at `best` are the best ones."""

    row: str
    runs: tuple[str, ...]
    texts: tuple[str, ...]
    best: frozenset[int]


def figures_of(
    store: RunStore, keys: Sequence[str], metric: str, own: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return the figures of each run, from all points that count: not those that a later session superseded.

    `own` has the name that each run gives the metric.
    """
    found: dict[str, Series] = {}
    for name in dict.fromkeys(own.values()):
        found.update(store.series_of([key for key in own if own[key] == name], name, buckets=2**40))
    is_max = metric_direction(metric) == "max"
    return {key: _figures(found[key], is_max=is_max) if key in found else {} for key in keys}


def _figures(series: Series, *, is_max: bool) -> dict[str, float]:
    segments = series.segments
    values = np.concatenate([segment.y for segment in segments]) if segments else np.empty(0)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {NOT_FINITE: float(len(values))} if len(values) else {}
    return {
        "last": float(values[-1]),
        "best": float(finite.max() if is_max else finite.min()),
        "mean of last 10 %": float(finite[-max(1, len(finite) // 10) :].mean()),
        "median": float(np.median(finite)),
        NOT_FINITE: float(len(values) - len(finite)),
    }


def figure_rows(
    rows: Sequence[tuple[str, tuple[str, ...]]],
    figures: Mapping[str, Mapping[str, float]],
    metric: str,
    base: str,
) -> tuple[list[str], list[FigureRow]]:
    """Return the names of the figures, and the rows, the best first; of several runs, mean and standard deviation.

    A row is given by its name and its runs; `base` is the one that others are compared with.
    """
    of = {row: {name: _known(figures, runs, name) for name in (*FIGURES, NOT_FINITE)} for row, runs in rows}
    means = {
        row: {name: float(np.mean(values)) for name, values in found.items() if values}
        for row, found in of.items()
    }
    names = [*FIGURES, *([NOT_FINITE] if any(found.get(NOT_FINITE) for found in means.values()) else [])]
    best = {name: _best(metric, {row: means[row].get(name) for row in means}) for name in FIGURES}

    def text(row: str, name: str) -> str:
        value, values = means[row].get(name), of[row][name]
        spread = f" ± {float(np.std(values, ddof=1)):.2g}" if len(values) > 1 else ""
        is_compared = row != base and name != NOT_FINITE
        return short_number(value) + spread + (against(value, means[base].get(name)) if is_compared else "")

    found = [
        FigureRow(
            row=row,
            runs=runs,
            texts=tuple(text(row, name) for name in names),
            best=frozenset(number for number, name in enumerate(names) if row in best.get(name, ())),
        )
        for row, runs in rows
    ]
    return names, sorted(found, key=lambda one: _cost(metric, means[one.row].get("last")))


def _known(figures: Mapping[str, Mapping[str, float]], runs: Sequence[str], name: str) -> list[float]:
    return [figures[run][name] for run in runs if name in figures[run]]


def against(value: float | None, base: float | None) -> str:
    """Return how far a value is from that of the baseline, to be put after it; empty if that cannot be said."""
    if value is None or not base or not math.isfinite(value) or not math.isfinite(base) or value == base:
        return ""
    return f"  ({(value - base) / abs(base):+.1%})"


def _cost(metric: str, value: float | None) -> float:
    """Return what sorts the best row first; the order stays if it is not known which is better."""
    direction = metric_direction(metric)
    if direction is None:
        return 0.0
    if value is None or not math.isfinite(value):
        return math.inf
    return value if direction == "min" else -value


def _best(metric: str, values: Mapping[str, float | None]) -> set[str]:
    """Return the rows with the best figure; none if it is not known which is better, or if all are equal."""
    direction = metric_direction(metric)
    finite = {row: value for row, value in values.items() if value is not None and math.isfinite(value)}
    if direction is None or len(set(finite.values())) < 2:
        return set()
    target = min(finite.values()) if direction == "min" else max(finite.values())
    return {row for row, value in finite.items() if value == target}
