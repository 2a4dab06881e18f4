"""The columns, cells and groups of the run table."""

from __future__ import annotations

import math
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from toolkit.telemetry.core.run_search import text_of
from toolkit.telemetry.formulas.formula import FormulaError, is_formula, names_of, parse
from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.metrics import (
    TRAIN_LOSSES,
    Direction,
    guess_primary_metric,
    metric_direction,
)
from toolkit.telemetry.runfolder.untrusted import is_number
from toolkit.telemetry.runs.formatting import ago, clock, count, duration, short_number
from toolkit.telemetry.runs.listing.formula_value import formula_value
from toolkit.telemetry.runs.listing.search import names_in, value_of
from toolkit.telemetry.runs.settings import setting_names, setting_text
from toolkit.telemetry.runs.store import RunCard

Kind = Literal["name", "text", "number", "progress", "spark", "tags", "badge"]
NAME: Final = "name"
MAX_SETTINGS_SHOWN: Final = 8
_MAX_COLUMNS: Final = 400
_KNOWN_LISTS: Final = 8
_FIRST: Final = (
    "learning_rate lora_rank batch_size optimizer scheduler lora_alpha weight_decay dropout model max_steps "
    "warmup_steps seed"
).split()
"""The settings that people look for first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """The metric by which runs are compared."""

    metric: str
    direction: Direction

    def best_of(self, card: RunCard) -> float | None:
        """Return the run's best value; None without one."""
        found = card.evaluations.get(self.metric)
        if found is None:
            return None
        if found.direction == self.direction:
            return found.best
        return found.last if math.isfinite(found.last) else None

    def against(self, card: RunCard, base: RunCard | None) -> float | None:
        """Return how far a run's best value is from the baseline's, as a fraction of that; None if it has none."""
        value, reference = self.best_of(card), None if base is None else self.best_of(base)
        return (value - reference) / abs(reference) if value is not None and reference else None

    @property
    def order(self) -> str:
        """The order of a list with the best run first."""
        if metric_direction(self.metric) == self.direction:
            return f"best:{self.metric}"
        return f"{'-' if self.direction == 'max' else ''}last:{self.metric}"

    def best_card(self, cards: Iterable[RunCard]) -> RunCard | None:
        """Return the best of these runs; None if none has the metric."""
        known = [(value, card) for card in cards if (value := self.best_of(card)) is not None]
        pick = min if self.direction == "min" else max
        return pick(known, key=lambda pair: pair[0])[1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table."""

    id: str
    label: str
    kind: Kind = "text"
    sorts: tuple[str, str] | None = None
    """The order of the first click on its name, and of the second; None if it cannot be sorted."""
    help: str = ""


def _sorted(name: str, label: str, kind: Kind = "text", about: str = "", *, by: str = "") -> Column:
    """Return a column that is sorted by itself, or by `by`."""
    first = by or name
    second = first[1:] if first.startswith("-") else f"-{first}"
    return Column(id=name, label=label, kind=kind, sorts=(first, second), help=about)


def primary_of(cards: Sequence[RunCard], settings: ProjectSettings) -> Primary | None:
    """Return the project's primary metric: the chosen one if a run has it, else a guess; None without any."""
    metric = settings.primary_metric
    if metric is None or not any(metric in card.evaluations for card in cards):
        shapes = Counter(tuple(card.evaluations) for card in cards)
        # Each kind of run counts as often as there are such runs, up to a limit.
        metric = guess_primary_metric(
            names for names, times in shapes.items() for _ in range(min(times, 1 + 200 // len(shapes)))
        )
    if metric is None:
        return None
    chosen = settings.direction if metric == settings.primary_metric else None
    return Primary(metric=metric, direction=chosen or metric_direction(metric) or "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The settings in which runs differ."""

    every: tuple[str, ...] = ()
    """All of them, the most telling first; those that some runs lack and the others agree on last."""
    telling: tuple[str, ...] = ()
    """Those that at least half of the runs have, with more than one value."""


_Configs = list[Mapping[str, Any]]
_known_differences: list[tuple[_Configs, Differences]] = []
"""Of the newest lists: a page asks twice at each refresh, and of 10,000 runs with 30 settings it takes 0.1 s."""


def differences_of(cards: Sequence[RunCard]) -> Differences:
    """Return the settings that differ among the runs which have a configuration."""
    configs: _Configs = [card.config for card in cards if card.config]
    for before, found in _known_differences:
        if len(before) == len(configs) and all(map(operator.is_, before, configs)):
            return found
    found = _differences(configs)
    _known_differences.insert(0, (configs, found))
    del _known_differences[_KNOWN_LISTS:]
    return found


def _differences(configs: _Configs) -> Differences:
    first: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    differing: set[str] = set()
    for config in configs:
        seen.update(config.keys())
        for name, value in config.items():
            if name not in differing and first.setdefault(name, value) != value:
                differing.add(name)
    lacking = {name for name in first if seen[name] < len(configs)} - differing
    place = {name: number for number, name in enumerate(_FIRST)}

    def order(name: str) -> tuple[Any, ...]:
        is_rare = 2 * seen[name] < len(configs)
        return (name in lacking, is_rare, place.get(name, len(place)), "." in name, -seen[name], name)

    every = sorted(differing | lacking, key=order)[:_MAX_COLUMNS]
    telling = [name for name in every if name in differing and 2 * seen[name] >= len(configs)]
    return Differences(every=tuple(every), telling=tuple(telling))


def metrics_of(cards: Iterable[RunCard]) -> list[str]:
    """Return the evaluation metrics that any of these runs has."""
    return _names(card.evaluations for card in cards)


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    # Most runs of a list have the same names. Not a set, whose order changes with each start of the server.
    shapes = dict.fromkeys(tuple(mapping) for mapping in mappings)
    return [*dict.fromkeys(name for names in shapes for name in names)]


def _setting_column(name: str, cards: Sequence[RunCard], about: str) -> Column:
    value = next((card.config[name] for card in cards if card.config.get(name) is not None), None)
    kind: Kind = "number" if is_number(value) else "text"
    return _sorted(f"config:{name}", setting_names([name])[name], kind, about)


def columns_of(cards: Sequence[RunCard], primary: Primary | None) -> dict[str, Column]:
    """Return every column that these runs can have, by id, in the order of the table."""
    columns = [_sorted(NAME, "Run", "name"), *_status_columns(cards)]
    if primary is not None:
        columns += _metric_columns(primary.metric, primary.direction)
    columns += [_setting_column(name, cards, f"Configured {name}") for name in differences_of(cards).every]
    columns += _COMMON
    if any(card.tags for card in cards):
        columns.append(Column(id="tags", label="Tags", kind="tags"))
    columns += _LATER
    for name in metrics_of(cards):
        if primary is None or name != primary.metric:
            columns += _metric_columns(name, metric_direction(name))
    columns += [
        _setting_column(name, cards, f"Configured {name}: the same in all of these runs")
        for name in _names(card.config for card in cards)
    ]
    found: dict[str, Column] = {}
    for column in columns[:_MAX_COLUMNS]:
        found.setdefault(column.id, column)
    return found


AGAINST: Final = Column(
    id="against",
    label="vs baseline",
    kind="number",
    help="How far its best value is from that of the run with the star",
)


def formula_column(text: str) -> Column | None:
    """Return the column of a formula, with a leading `=`; None if it is not one that a list can have."""
    if formula_problem(text, ()) is not None:
        return None
    label, names = text.removeprefix("=").strip(), names_of(text)
    about = f"A formula over {', '.join(names)}" if names else "A formula"
    return _sorted(text, label, "number", about)


def formula_problem(text: str, cards: Sequence[RunCard]) -> str | None:
    """Return why a formula cannot be a column of these runs, in a sentence; None if it can."""
    try:
        formula_value(text, {}, lambda _prefix, _name: ())
        return parse(text).unknown(names_in(cards)) if cards else None
    except FormulaError as error:
        return str(error)


def default_columns(cards: Sequence[RunCard], primary: Primary | None) -> list[str]:
    """Return the columns to show if nothing was chosen: what differs between these runs, and how good they are."""
    shown = [NAME, "status"]
    if any(any(card.open_findings) for card in cards):
        shown.append("alerts")
    if primary is not None:
        shown.append(f"best:{primary.metric}")
        if primary.metric not in TRAIN_LOSSES:
            shown.append(f"last:{primary.metric}")
    shown.append("loss")
    found = differences_of(cards)
    shown += [f"config:{name}" for name in (found.telling or found.every)[:MAX_SETTINGS_SHOWN]]
    shown += ["progress", "step", "trend", "last_sign", "duration"]
    if any(card.tags for card in cards):
        shown.append("tags")
    shown[2:2] = [name for name in ("team", "logged_by") if any(getattr(card, name) for card in cards)]
    if any(card.problem for card in cards):
        shown.append("problem")
    return [*shown, "started", "host"]


_WHERE_ANY: Final = (
    Column(id="team", label="Team"),
    Column(id="logged_by", label="Logged by", help="The tool that wrote the log; empty for our own runs"),
    Column(id="problem", label="Problem"),
)


def _status_columns(cards: Sequence[RunCard]) -> list[Column]:
    return [
        _sorted("status", "Status", "badge"),
        _sorted("alerts", "Alerts", "badge", "Findings that were open at the last update"),
        *(column for column in _WHERE_ANY if any(getattr(card, column.id) for card in cards)),
    ]


def _metric_columns(metric: str, direction: Direction | None) -> list[Column]:
    best, last, is_max = f"best:{metric}", f"last:{metric}", direction == "max"
    about = f"The {'highest' if is_max else 'lowest'} finite value of {metric}"
    by = f"-{last}" if is_max else last
    columns = [_sorted(last, f"{metric} last", "number", f"The last logged value of {metric}", by=by)]
    return columns if direction is None else [_sorted(best, f"{metric} best", "number", about), *columns]


_COMMON: Final = [
    _sorted("loss", "Loss (last)", "number", "The last training loss"),
    _sorted("progress", "Progress", "progress"),
    _sorted("step", "Step", "number", by="-step"),
    Column(
        id="trend",
        label="Loss trend",
        kind="spark",
        help="Training loss sampled at about 40 points of the log. The charts of a run use all of it.",
    ),
    _sorted("last_sign", "Last update", by="last sign"),
    _sorted("duration", "Duration", "number"),
]
_LATER: Final = [
    _sorted("started", "Started"),
    Column(id="host", label="Host"),
    Column(
        id="forecast",
        label="Forecast",
        help="Where the training loss of a live run will end, with its 90 % interval",
    ),
    Column(id="project", label="Project"),
    Column(id="folder", label="Folder"),
]


def cell(card: RunCard, column: str, now: float) -> Any:
    """Return what a cell shows: a text, or for progress a number from 0 to 1; empty without a value."""
    if is_formula(column):
        value = value_of(card, column)
        return "" if value is None else short_number(value)
    kind, colon, name = column.partition(":")
    if colon and kind == "config":
        value = card.config.get(name)
        return "" if value is None else setting_text(value)
    if colon:
        found = card.evaluations.get(name)
        value = None if found is None else found.best if kind == "best" else found.last
        return "" if value is None else short_number(value)
    return _CELLS[column](card, now) if column in _CELLS else ""


def _alerts(card: RunCard) -> str:
    critical, warnings = card.open_findings
    # Text glyphs: colour alone is not accessible.
    return "  ".join(f"{glyph} {number}" for glyph, number in (("✕", critical), ("▲", warnings)) if number)


_CELLS: Final[Mapping[str, Any]] = {
    NAME: lambda card, _: card.name,
    "team": lambda card, _: card.team or "",
    "logged_by": lambda card, _: card.logged_by or "",
    "alerts": lambda card, _: _alerts(card),
    "problem": lambda card, _: card.problem or "",
    "loss": lambda card, _: short_number(card.loss) if card.loss is not None else "",
    "progress": lambda card, _: card.progress,
    "step": lambda card, _: count(card.step) if card.step is not None else "",
    "last_sign": lambda card, now: ago(now - card.last_sign) if card.last_sign is not None else "",
    "duration": lambda card, _: duration(card.duration_s) if card.duration_s is not None else "",
    "tags": lambda card, _: list(card.tags),
    "started": lambda card, now: clock(card.created, now=now) if card.created is not None else "",
    "host": lambda card, _: card.host,
    "project": lambda card, _: card.project or "",
    "folder": lambda card, _: card.place,
}


# ------------------------------------------------------------ groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that have the same value of a setting, or the same tag."""

    text: str
    search: str
    """The search that finds its runs."""
    runs: int
    known: int
    """How many of them have the primary metric."""
    mean: float | None
    spread: float | None
    """Sample standard deviation; None for fewer than two."""
    best: RunCard | None


def groups_of(cards: Sequence[RunCard], key: str, primary: Primary | None) -> list[Group]:
    """Return the runs grouped by a setting, `tag`, `status`, `project` or `host`, the best mean first."""
    grouped: dict[Any, list[RunCard]] = {}
    for card in cards:
        for value in _group_values(card, key):
            grouped.setdefault(value, []).append(card)
    groups = []
    for value, members in grouped.items():
        values = [best for card in members if primary and (best := primary.best_of(card)) is not None]
        quoted = text_of(value) if value is not None else ""
        is_bare = quoted and not any(character.isspace() or character in '"<>' for character in quoted)
        groups.append(
            Group(
                text=setting_text(value) if value is not None else "(none)",
                search="" if value is None else f"{key}={quoted if is_bare else chr(34) + quoted + chr(34)}",
                runs=len(members),
                known=len(values),
                mean=statistics.fmean(values) if values else None,
                spread=statistics.stdev(values) if len(values) > 1 else None,
                best=primary.best_card(members) if primary else None,
            )
        )
    sign = -1 if primary is not None and primary.direction == "max" else 1
    return sorted(groups, key=lambda group: (group.mean is None, sign * (group.mean or 0.0), group.text))


def _group_values(card: RunCard, key: str) -> Sequence[Any]:
    if key == "tag":
        return card.tags or (None,)
    fields = {"status": card.status.name, "project": card.project, "host": card.host or None}
    return (fields[key] if key in fields else card.config.get(key),)
