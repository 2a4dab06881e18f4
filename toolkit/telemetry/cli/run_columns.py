"""The table of runs in the terminal: what `telemetry ls` prints and `telemetry top` keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from toolkit.telemetry.cli.chosen_run import size_of
from toolkit.telemetry.cli.run_list import STATUS_STYLES, ListedRun, age_of
from toolkit.telemetry.cli.terminal import Cell, Column, age_text, number_text
from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.runfolder.labels import ProjectSettingsError, read_project
from toolkit.telemetry.runs.formatting import size
from toolkit.telemetry.runs.listing.run_table import Primary, primary_of
from toolkit.telemetry.runs.listing.search import value_of
from toolkit.telemetry.runs.settings import setting_text
from toolkit.telemetry.runs.store import RunCard, card_labels

_Baseline: TypeAlias = tuple[RunCard | None, Primary | None]


def columns_of(
    runs: list[ListedRun], further: Sequence[str], *, with_size: bool = False
) -> list[tuple[Column, list[Cell]]]:
    """Return the columns: those that tell namesakes apart only where there are some, and what else is asked for."""
    cards, now = [run.card for run in runs], time.time()
    labels = [*card_labels(cards).values()]
    columns: list[tuple[Column, list[Cell]]] = [(Column("run"), [card.name for card in cards])]
    if any(label.folder for label in labels):
        columns.append((Column("folder"), [label.folder for label in labels]))
    if any(label.differs for label in labels):
        columns.append((Column("what differs"), [label.differs for label in labels]))
    if any(card.format != OURS for card in cards):
        columns.append((Column("format", keep=True), [card.format for card in cards]))
    baselines: dict[tuple[int, Path, str | None], _Baseline] = {}
    differences: list[Cell] = [_against_baseline(run, baselines) for run in runs]
    if any(differences):
        columns.append((Column("vs baseline", right=True), differences))
    steps: list[Cell] = ["" if card.step is None else f"{card.step:,}" for card in cards]
    columns += [
        (Column("status", keep=True), [_status(card) for card in cards]),
        (Column("step", right=True, keep=True), steps),
        (Column("loss", right=True, keep=True), [number_text(card.loss) for card in cards]),
    ]
    for name in dict.fromkeys(further):
        if name not in (*(column.title for column, _ in columns), "name", "format", "age"):
            columns.append((Column(name, right=True), [_text(value_of(card, name), name) for card in cards]))
    if with_size:
        columns.append((Column("size", right=True, keep=True), [size(size_of(run.path)) for run in runs]))
    ages: list[Cell] = [age_text(age_of(card, now)) for card in cards]
    return [*columns, (Column("age", right=True, keep=True), ages)]


def _against_baseline(run: ListedRun, known: dict[tuple[int, Path, str | None], _Baseline]) -> str:
    """Return how far a run is from the baseline of its project; empty where none was chosen."""
    project = id(run.folders), run.path.parent, run.card.project
    if project not in known:
        known[project] = _baseline_of(run)
    base, primary = known[project]
    found = None if primary is None else primary.against(run.card, base)
    return "baseline" if run.card == base else "" if found is None else f"{found:+.1%}"


def _baseline_of(run: ListedRun) -> _Baseline:
    """Return the baseline of a run's project, and the metric by which runs are compared with it."""
    try:
        settings = read_project(run.path.parent, run.card.project)
    except ProjectSettingsError:
        return None, None
    if settings.baseline is None:
        return None, None
    others = [card for card in run.folders.list_runs().cards if card.project == run.card.project]
    name = settings.baseline.rpartition("~")[2]
    base = next((card for card in others if card.path == run.path.parent / name), None)
    return base, primary_of(others, settings)


def _status(card: RunCard) -> Cell:
    name = card.status.name
    return f"{name}, deleted" if card.deleted else name, STATUS_STYLES.get(name, "")


def _text(value: Any, name: str) -> str:
    if name in ("started", "updated") and value is not None:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return age_text(value) if name == "duration" else setting_text(value) if value is not None else ""
