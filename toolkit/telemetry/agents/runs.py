"""The runs that an agent may ask about: those below the folders it was given, and where each of their numbers is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from toolkit.telemetry.agents.answer import AskError, near
from toolkit.telemetry.answers.evidence import RunEvidence, read_evidence
from toolkit.telemetry.core.user_folders import labels_dir
from toolkit.telemetry.formulas.formula import is_formula
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.importers.source import RunSource
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import (
    INTERNAL,
    LIKELY,
    is_evaluation,
    metric_direction,
    metrics_of,
    position_of,
)
from toolkit.telemetry.runfolder.reader import BadLine, lines_of, parse_line, read_block, tail_cursor
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, START, is_spread
from toolkit.telemetry.runs.columns.thinning import runs_of
from toolkit.telemetry.runs.listing.foreign_runs import ForeignRun
from toolkit.telemetry.runs.listing.run_folders import runs_at
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Points, RunCard, RunList, RunQuery, UnknownRun
from toolkit.telemetry.runs.tables.run_tables import RunTables

VALUE: Final = ("value", "session", "step", "offset", "superseded")
"""The columns of a number and of where it is."""
WAIT_S: Final = 86_400.0
_ANSWER: Final = "id status reason global_step session actions setting old new time".split()
_TAILS: Final = (64 * 1024, 1024 * 1024, 16 * 1024 * 1024)

Placed = tuple[Any, int | None, float | None, int | None, bool]
"""A value, its session and step, where its record begins (each None where that is not known), and whether a later
session did that step again."""


class Runs:
    """The runs below some folders; nothing else can be named. Thread-safe."""

    def __init__(self, folders: Sequence[Path], *, allow_requests: bool = False) -> None:
        self.folders = runs_at(folders, labels_dir=labels_dir())
        self.tables = cache(lambda: RunTables(folders))
        self.store = LocalStore([], cache_dir=None, read_only=not allow_requests, folders=self.folders)

    def listed(self, query: RunQuery) -> RunList:
        """Return the runs that a query finds. Raises AskError."""
        self.folders.read_all(lambda _name, _at, _of: None)
        try:
            return self.store.list_runs(query)
        except ValueError as error:
            raise AskError("The query or the order cannot be read.", problem=str(error)) from error

    def card(self, name: str) -> RunCard:
        """Return the run with this key, or the only one with this name, after reading it. Raises AskError."""
        try:
            key = self.store.card(name).key
        except UnknownRun:
            card, namesakes = self.folders.named(name)
            if card is None:
                similar = self.folders.near(name)
                raise AskError("No run has this name; see `list`.", asked=name, near=similar) from None
            if namesakes and name == card.name:
                keys = [card.key for card in self.listed(RunQuery()).cards if name == card.name]
                raise AskError("Several runs have this name; use a key.", asked=name, near=keys) from None
            key = card.key
        self.store.refresh(key, wait_s=WAIT_S)
        return self.store.card(key)

    def source(self, card: RunCard) -> Path | RunSource:
        """Return what the commands read a run from."""
        found = self.folders.find(card.key)
        return found.source if isinstance(found, ForeignRun) else found.folder

    def files(self, card: RunCard) -> Sequence[str]:
        """Return the record file of a run, or the parts of another tool's run."""
        source = self.source(card)
        if isinstance(source, Path):
            return [str(source / METRICS_JSONL)]
        return [str(source.info.root / piece.path) for piece in source.info.pieces[:5]]

    def evidence(self, card: RunCard) -> RunEvidence:
        """Return what a run recorded, for answers. Raises AskError."""
        found = read_evidence(self.source(card))
        if found.problem is not None and not found.sessions:
            raise AskError("The run cannot be read.", run=card.key, problem=found.problem)
        return found

    # ------------------------------------------------------------ numbers

    def metrics(self, card: RunCard, pattern: re.Pattern[str] | None = None) -> Sequence[str]:
        """Return the names of a run's metrics: the losses and results first, those of the machine last."""
        events = {info.name: info.event for info in self.store.metrics(card.key)}
        first = [card.loss_metric, *LIKELY]

        def rank(name: str) -> int:
            if name in first:
                return first.index(name)
            is_ours = events[name] == "system" or name.startswith(INTERNAL) or is_spread(name, events)
            return 30 if is_ours else 10 if is_evaluation(name, event=events[name]) else 20

        return sorted((name for name in events if pattern is None or pattern.match(name)), key=rank)

    def points(self, card: RunCard, metric: str) -> tuple[Points, Sequence[Path]]:
        """Return every point of a metric, or of a formula, and the files that have them. Raises AskError."""
        found = self.store.points(card.key, metric)
        if found is None:
            names = self.metrics(card)
            similar = near(metric, names) or names[:5]
            problem = self.store.formula_problem(card.key, metric) if is_formula(metric) else None
            sentence = "The run has no such metric; `describe` gives all of them."
            raise AskError(sentence, run=card.key, asked=metric, near=similar, problem=problem)
        return found

    def last(self, card: RunCard, metric: str) -> Placed | None:
        """Return the last value of a metric; of the last session of ours without reading all of the run."""
        path = Path(self.files(card)[0])
        for within in _TAILS if card.format == OURS else ():
            with suppress(OSError):
                block = read_block(path, tail_cursor(path, within), max_bytes=2 * within)
                lines = [(offset, parse_line(offset, line)) for offset, line in lines_of(block)]
                records = [(offset, record) for offset, record in lines if not isinstance(record, BadLine)]
                for offset, record in reversed(records):
                    at, values = position_of(record), dict(metrics_of(record))
                    if at.session != position_of(records[-1][1]).session:
                        break
                    if metric in values:
                        return values[metric], at.session, _whole(at.step), offset, False
        self.store.refresh(card.key, wait_s=WAIT_S)
        points = self.store.points(card.key, metric)
        return None if points is None else place(points[0], last_of(points[0]))

    def best(self, card: RunCard, metric: str) -> Placed | None:
        """Return the best value of a metric that counts; None if its name does not say what is better."""
        self.store.refresh(card.key, wait_s=WAIT_S)
        found, goal = self.store.points(card.key, metric), metric_direction(metric)
        if found is None or goal is None:
            return None
        values = found[0].value * (1.0 if goal == "min" else -1.0)
        known = np.isfinite(values) & found[0].is_current
        return place(found[0], int(np.where(known, values, np.inf).argmin())) if known.any() else None

    def inputs(
        self, card: RunCard, metric: str | None, steps: tuple[float, float] = (-math.inf, math.inf)
    ) -> dict[str, Any]:
        """Return the points that a derived number comes from: how many, and the first and last step and offset."""
        found = None if metric is None else self.store.points(card.key, metric)
        if found is None:
            return {"run": card.key, "metric": metric, "records": 0}
        inside = np.flatnonzero((found[0].step >= steps[0]) & (found[0].step <= steps[1]))
        return {"run": card.key, "metric": metric, **ends_of(found[0], inside)}

    def requests(self, card: RunCard) -> list[dict[str, Any]]:
        """Return what a run of ours was asked for and answered, the newest first, with the offset of each answer."""
        found = self.store.placed_events(card.key, (CONTROL_CHANGE,), limit=20) if card.format == OURS else []
        return [{"offset": at, **{name: one[name] for name in _ANSWER if name in one}} for at, one in found]

    def settings_place(self, card: RunCard) -> dict[str, int | None]:
        """Return session and offset of the newest start record, which has the settings; None of another tool's run."""
        self.store.refresh(card.key, wait_s=WAIT_S)
        found = self.store.placed_events(card.key, (START,), limit=1) if card.format == OURS else []
        return {"session": found[0][1].get("session"), "offset": found[0][0]} if found else {}


def cut_of(cards: Iterable[RunCard]) -> list[str]:
    """Return a sentence about each of the runs whose log was cut."""
    return [f"{card.key}: {card.problem}" for card in cards if card.is_cut]


def place(points: Points, at: int) -> Placed:
    """Return a point and where it is."""
    offset, step = int(points.offset[at]), _whole(float(points.step[at]))
    value, session, is_current = float(points.value[at]), int(points.session[at]), bool(points.is_current[at])
    return value, session, step, None if offset < 0 else offset, not is_current


def last_of(points: Points) -> int:
    """Return the last point that counts; the last of all if none does."""
    current = np.flatnonzero(points.is_current)
    return int(current[-1]) if len(current) else -1


def ends_of(points: Points, inside: Any) -> dict[str, Any]:
    """Return how many points these are, and step and offset of the first and the last."""
    ends = [place(points, int(at)) for at in inside[[0, -1]]] if len(inside) else []
    return {"records": len(inside), "steps": [end[2] for end in ends], "offsets": [end[3] for end in ends]}


def thinned(values: Any, most: int) -> list[int]:
    """Return which of `values` to show: smallest, largest, last, first, NaN, then the extremes of equal parts."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) <= most:
        return list(range(len(numbers)))
    finite = np.isfinite(numbers)
    low, high = np.where(finite, numbers, np.inf), np.where(finite, numbers, -np.inf)
    # The longest ranges without a number first.
    odd = sorted(runs_of(~finite), key=lambda ends: ends[0] - ends[1])
    wanted = [
        int(low.argmin()),
        int(high.argmax()),
        len(numbers) - 1,
        0,
        *(at for ends in odd for at in ends),
    ]
    kept = dict.fromkeys([*dict.fromkeys(wanted)][:most])
    parts = (most - len(kept)) // 2
    for part in np.array_split(np.arange(len(numbers)), parts) if parts else ():
        kept.update(dict.fromkeys((int(part[low[part].argmin()]), int(part[high[part].argmax()]))))
    return sorted(kept)


def numbered(found: Iterable[tuple[Sequence[Any], Placed]], *columns: str) -> dict[str, Any]:
    """Return a table of numbers, each with where it is; a column that is the same in all rows becomes a field.

    Whether a number is superseded is said only where one is.
    """
    rows, names = [[*head, *placed] for head, placed in found], [*columns, *VALUE]
    same = [
        (len(rows) > 1 or name == "superseded")
        and name not in ("value", "run")
        and len({repr(row[at]) for row in rows}) == 1
        for at, name in enumerate(names)
    ]
    shared = {name: rows[0][at] for at, name in enumerate(names) if same[at] and rows[0][at] is not False}
    kept = [[cell for cell, is_same in zip(row, same, strict=True) if not is_same] for row in [names, *rows]]
    return {**shared, "columns": kept[0], "rows": kept[1:]} if rows else {}


def _whole(number: float) -> float | None:
    return None if not math.isfinite(number) else int(number) if number.is_integer() else number
