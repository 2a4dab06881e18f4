"""Runs as Arrow tables: each is read when it is asked for, and of records only the columns asked for."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from toolkit.telemetry.core.user_folders import labels_dir, user_folder
from toolkit.telemetry.diagnostics.metric_aliases import LOSS, LR, signal_of
from toolkit.telemetry.runfolder.control import ControlRefused, encode_body, read_request
from toolkit.telemetry.runfolder.key_values import given_names
from toolkit.telemetry.runfolder.layout import METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import KINDS
from toolkit.telemetry.runfolder.records import CONTROL_CHANGE, EPOCH, EVAL, STEP, SYSTEM
from toolkit.telemetry.runfolder.untrusted import number_in, whole_in
from toolkit.telemetry.runs.columns.run_columns import MetricColumn, RunColumns
from toolkit.telemetry.runs.findings.health import findings_of
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.foreign_runs import OnRun
from toolkit.telemetry.runs.listing.run_folders import runs_at
from toolkit.telemetry.runs.listing.run_listing import FoundRun, read_start
from toolkit.telemetry.runs.settings import as_number, setting_text
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.spans import FAILED, UNFINISHED
from toolkit.telemetry.runs.store import Floats, RunCard, card_labels

_TYPES: Final = {
    "text": pa.large_string(),
    "texts": pa.list_(pa.string()),
    "whole": pa.int64(),
    "number": pa.float64(),
    "yes": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
}
_PLACE: Final = "file:text byte_offset:whole"
_RECORD: Final = (
    f"run:text session:whole rank:whole step:whole epoch:number time:time superseded:yes event:text {_PLACE}"
)
_COLUMNS: Final = {
    "runs": "run:text status:text step:whole loss:number loss_metric:text lr:number created:time last_sign:time "
    "duration_s:number max_steps:whole epoch:number samples_per_sec:number sessions:whole open_critical:whole "
    "open_warnings:whole project:text tags:texts archived:yes host:text format:text name:text id:text key:text "
    "path:text why:text problem:text",
    "settings": "run:text setting:text value:text number:number",
    "steps": f"{_RECORD} loss:number lr:number",
    "evals": _RECORD,
    "system": _RECORD,
    "spans": "run:text session:whole rank:whole name:text clock:text step:whole start:time seconds:number failed:yes "
    f"unfinished:yes {_PLACE}",
    "findings": "run:text kind:text severity:text state:text metric:text session:whole start_step:whole "
    "end_step:whole noticed_step:whole resolved_step:whole count:whole repeats:whole confidence:number message:text "
    "evidence:text causes:texts advice:texts id:text",
    "requests": f"run:text id:text status:text asked:text reason:text step:whole time:time session:whole {_PLACE}",
}
"""The tables, and name and type of the columns that each always has; `steps`, `evals` and `system` have one more for
each metric."""
TABLES: Final = tuple(_COLUMNS)
UNANSWERED: Final = "unanswered"

_KINDS_IN: Final = {"steps": (STEP,), "evals": (EVAL, EPOCH), "system": (SYSTEM,)}
_SIGNALS: Final = {"loss": LOSS, "lr": LR}
_ASKED: Final = ("setting", "old", "new", "requested", "actions", "knobs")
_LIST_EVERY_S: Final = 0.5
_NO_LIMIT_S: Final = 86_400.0
_ALL: Final = 2**31
_FAR_S: Final = 1e11
"""A time further from 1970 is not one."""


def schema_of(table: str) -> pa.Schema:
    """Return the columns that a table always has."""
    pairs = (column.split(":") for column in _COLUMNS[table].split())
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


class RunTables:
    """The runs at some paths as tables. A second question reads only what is new."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        cache_dir: Path | None = None,
        on_run: OnRun = lambda *_: None,
        logs: Path | None = None,
    ) -> None:
        """Find the runs at `paths`: folders of runs, runs, files of other tools, or names of runs in `logs`.

        Columns are kept in `cache_dir`.
        """
        self.folders = runs_at(paths, labels_dir=labels_dir(), logs=logs)
        self.folders.read_all(on_run)
        self._store = LocalStore(
            (), cache_dir=cache_dir or user_folder("cache"), folders=self.folders, read_only=True
        )
        self._runs: dict[str, RunCard] = {}
        self._listed_at = -math.inf
        self.notes: dict[str, None] = {}
        """What could not be read since the runs were listed, a sentence for each."""
        self.list_again()

    def list_again(self) -> None:
        """Look for new runs, unless that was just done."""
        if time.monotonic() - self._listed_at > _LIST_EVERY_S:
            listed = self.folders.list_runs()
            labels = card_labels(listed.cards)
            short = {key: label.folder or label.name for key, label in labels.items()}
            times = Counter(short.values())
            self._runs = {
                short[card.key] if times[short[card.key]] == 1 else labels[card.key].text: card
                for card in listed.cards
            }
            self._listed_at, self.notes = time.monotonic(), dict.fromkeys(listed.problems)

    def runs(self) -> dict[str, RunCard]:
        """Return the runs listed last by the name, or of namesakes the folder, that `telemetry ls` has for each.

        The last updated comes first.
        """
        return self._runs

    def table(
        self, name: str, columns: Collection[str] | None = None, *, runs: Collection[str] | None = None
    ) -> pa.Table:
        """Return one of TABLES, with all columns or at least those of `columns` that it has, of all runs or of `runs`.

        Names of columns are the same in upper and lower case.
        """
        cards = {run: card for run, card in self._runs.items() if runs is None or run in runs}
        if name in _KINDS_IN:
            wanted = None if columns is None else {column.casefold() for column in columns}
            return self._records(name, cards, wanted)
        if name == "spans":
            parts = [part for run, card in cards.items() for part in self._spans(run, card)]
            return pa.concat_tables([schema_of(name).empty_table(), *parts])
        makers: dict[str, Callable[[RunCard], Iterator[dict[str, Any]]]] = {
            "runs": _run,
            "settings": self._settings,
            "findings": self._findings,
            "requests": self._requests,
        }
        rows = [{"run": run, **row} for run, card in cards.items() for row in makers[name](card)]
        return pa.Table.from_pylist(rows, schema=schema_of(name))

    def columns(self, name: str) -> list[str]:
        """Return the names of a table's columns."""
        return list(self.table(name).column_names if name in _KINDS_IN else schema_of(name).names)

    # ------------------------------------------------------------ records

    def _records(self, name: str, cards: dict[str, RunCard], wanted: Collection[str] | None) -> pa.Table:
        fixed = schema_of(name)
        taken = tuple(column for column in fixed.names if column not in _SIGNALS)
        shown = {column: column for column in fixed.names}
        files: list[_File] = []
        for run, card in cards.items():
            of_run = [
                _File(run, card, rank, columns, _KINDS_IN[name]) for rank, columns in self._columns(run, card)
            ]
            labels = _labels(
                tuple(dict.fromkeys(metric for file in of_run for metric in file.metrics)), taken
            )
            for column, (label, _) in labels.items():
                shown[column] = min(shown.get(column, label), label, key=_as_written)
            for file in of_run:
                file.labels = labels
                file.name = self._file(card, file.rank) if wanted is None or "file" in wanted else None
            files += of_run
        self._store.wait_until_saved(_NO_LIMIT_S)
        # Without any column, the number of rows would be lost.
        asked = [column for column in shown if wanted is None or column in wanted] or ["run"]
        arrays = [
            pa.chunked_array([file.fixed(column) for file in files], fixed.field(column).type)
            if column in taken
            else pa.chunked_array([file.metric(column) for file in files], pa.float64())
            for column in asked
        ]
        return pa.table(arrays, names=[shown[column] for column in asked])

    def _columns(self, run: str, card: RunCard) -> Iterator[tuple[int, RunColumns]]:
        if card.problem:
            self.notes.setdefault(f"{run}: {card.problem}")
        for rank in self._store.ranks(card.key):
            health = self._store.refresh(card.key, wait_s=_NO_LIMIT_S, rank=rank)
            if health.problem is not None:
                self.notes.setdefault(f"{run}: {health.problem}")
            if health.bad_count:
                self.notes.setdefault(f"{run}: {health.bad_count:,} lines are not records")
            yield rank, self._store.columns(card.key, rank=rank)

    def _file(self, card: RunCard, rank: int) -> str | None:
        """Return the path of a record file from its run's folder; None if another tool logged it."""
        path = self._store.record_file(card.key, rank=rank)
        return None if path is None or card.path is None else clean(os.path.relpath(path, card.path))

    # ------------------------------------------------------------ other tables

    def _spans(self, run: str, card: RunCard) -> Iterator[pa.Table]:
        for rank, _ in self._columns(run, card):
            spans = self._store.spans(card.key, wait_s=_NO_LIMIT_S, rank=rank)
            count, names = len(spans), [clean(about.name) for about in spans.names]
            yield pa.table(
                [
                    _repeated(run, count),
                    spans.session,
                    np.full(count, rank),
                    pa.array(names, pa.string()).take(_array(spans.name)),
                    pa.array([about.clock for about in spans.names], pa.string()).take(_array(spans.name)),
                    _whole(spans.step),
                    _times(spans.start),
                    _array(spans.duration, np.isnan(spans.duration)),
                    (spans.flags & FAILED) > 0,
                    (spans.flags & UNFINISHED) > 0,
                    _repeated(self._file(card, rank), count),
                    spans.offset,
                ],
                names=schema_of("spans").names,
            ).cast(schema_of("spans"))

    def _settings(self, card: RunCard) -> Iterator[dict[str, Any]]:
        run = self.folders.find(card.key)
        if isinstance(run, FoundRun):
            given = read_start(run.folder / METRICS_JSONL).get("config")
        else:
            given = run.source.info.config
        settings = dict(card.config)
        # `lr` is also `learning_rate`, so that runs can be compared.
        for usual, own in given_names(given).items():
            if usual in settings:
                settings.setdefault(own, settings[usual])
        for name, value in settings.items():
            text = clean(setting_text(value, exact=True)) if value is not None else None
            yield {"setting": clean(name), "value": text, "number": as_number(value)}

    def _findings(self, card: RunCard) -> Iterator[dict[str, Any]]:
        self._store.refresh(card.key, wait_s=_NO_LIMIT_S)
        self._store.examine(card.key, wait_s=_NO_LIMIT_S)
        for finding in findings_of(self._store, card.key, most=_ALL):
            yield {**finding.to_fields(), "evidence": orjson.dumps(dict(finding.evidence)).decode()}

    def _requests(self, card: RunCard) -> Iterator[dict[str, Any]]:
        self._store.refresh(card.key, wait_s=_NO_LIMIT_S)
        starts, lengths, _ = self._store.columns(card.key).places_of((CONTROL_CHANGE,))
        places = list(zip(starts.tolist(), lengths.tolist(), strict=True))
        answered = set()
        for (at, _), record in zip(places, self._store.span_records(card.key, places), strict=True):
            if record is None:
                continue
            answered.add(record.get("id"))
            asked = {name: record[name] for name in _ASKED if name in record}
            texts: dict[str, Any] = {
                name: str(record[name]) for name in ("id", "status", "reason") if name in record
            }
            yield {
                **texts,
                "asked": orjson.dumps(asked, default=str).decode(),
                "step": whole_in(record.get("global_step")),
                "time": _time(number_in(record.get("time"))),
                "session": whole_in(record.get("session")),
                "file": self._file(card, 0),
                "byte_offset": at,
            }
        with suppress(ControlRefused, OSError):
            waiting = None if card.logged_by or card.path is None else read_request(card.path)
            if waiting is not None and waiting.id not in answered:
                asked_at = _time(waiting.timestamp)
                yield {
                    "id": waiting.id,
                    "status": UNANSWERED,
                    "asked": encode_body(waiting).decode(),
                    "time": asked_at,
                }


def _run(card: RunCard) -> Iterator[dict[str, Any]]:
    names = schema_of("runs").names
    critical, warnings = card.open_findings
    yield {
        **{name: getattr(card, name) for name in names if hasattr(card, name)},
        "status": card.status.name,
        "why": card.status.why,
        "path": clean(str(card.path or card.place)),
        "created": _time(card.created),
        "last_sign": _time(card.last_sign),
        "open_critical": critical,
        "open_warnings": warnings,
    }


@lru_cache(maxsize=256)
def _labels(metrics: tuple[str, ...], taken: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return by columns, in lower case, their names and metrics in one run.

    A name that another column of the run has, in upper or lower case, gets a number. It does not depend on other runs.
    """
    ordered = sorted(metrics, key=_as_written)
    names = unique_names([clean(metric) or "(no name)" for metric in ordered], taken)
    found = dict(zip(ordered, names, strict=True))
    return {found[metric].casefold(): (found[metric], metric) for metric in metrics}


def _as_written(name: str) -> tuple[bool, str]:
    """Sort `loss` before `Loss`."""
    return name != name.casefold(), name


def unique_names(names: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Return the names, those with a number that are `taken` or were there before, in upper or lower case."""
    known = {name.casefold() for name in taken}
    found = []
    for name in names:
        unique, number = name, 1
        while unique.casefold() in known:
            number += 1
            unique = f"{name}_{number}"
        known.add(unique.casefold())
        found.append(unique)
    return found


class _File:
    """The records of some kinds in one file."""

    def __init__(self, run: str, card: RunCard, rank: int, columns: RunColumns, kinds: Sequence[str]) -> None:
        self.run, self.card, self.rank, self.columns = run, card, rank, columns
        self.name: str | None = None
        self.labels: dict[str, tuple[str, str]] = {}
        # The last that is appended: it may grow meanwhile.
        kind = columns.kind.values[: len(columns.at)]
        self._is_ours = np.logical_or.reduce([kind == KINDS.index(name) for name in kinds])
        self.rows = np.flatnonzero(self._is_ours)
        self.metrics = {
            name: metric
            for name, metric in [*columns.metrics.items()]
            if metric.event in kinds or self._is_ours[_until(metric, len(kind))[0]].any()
        }

    @cached_property
    def _place(self) -> npt.NDArray[np.intp]:
        """Where each row of the file is among these; -1 for others."""
        return np.where(self._is_ours, np.cumsum(self._is_ours) - 1, -1)

    def fixed(self, name: str) -> pa.Array:
        """Return a column that every table of records has."""
        columns, count = self.columns, len(self.rows)
        if name in ("run", "file"):
            return _repeated(self.run if name == "run" else self.name, count)
        if name == "rank":
            return _array(np.full(count, self.rank))
        if name == "step":
            return _whole(columns.step.values[self.rows])
        if name == "epoch":
            epoch = columns.epoch.values[self.rows]
            return _array(epoch, np.isnan(epoch))
        if name == "time":
            return _times(columns.time.values[self.rows])
        if name == "event":
            return pa.array(KINDS, _TYPES["text"]).take(_array(columns.kind.values[self.rows]))
        if name == "byte_offset":
            at = columns.at.values[self.rows]
            return _array(at, at < 0)
        of_segment = np.zeros(len(self._is_ours), dtype=np.int64 if name == "session" else bool)
        for segment, counts_until in columns.counting():
            if name == "session":
                of_segment[segment.start : segment.end] = segment.session
            else:
                of_segment[counts_until : segment.end] = True
        return _array(of_segment[self.rows])

    def metric(self, column: str) -> pa.Array:
        """Return a metric, null where a record does not have it."""
        _, name = self.labels.get(column, (None, None))
        signal = _SIGNALS.get(column)
        if name is None and signal is not None:
            name = self.card.loss_metric if signal == LOSS else None
            if name not in self.metrics:
                name = next((other for other in self.metrics if signal_of(other) == signal), None)
        metric, count = None if name is None else self.metrics.get(name), len(self.rows)
        if metric is None:
            return pa.nulls(count, pa.float64())
        rows, values = _until(metric, len(self._is_ours))
        if len(rows) == count and (count == len(self._is_ours) or self._is_ours[rows].all()):
            # Every record has it, and they are in the order of the file.
            return _array(values)
        at = self._place[rows]
        dense, lacks = np.zeros(count), np.ones(count, dtype=bool)
        dense[at[at >= 0]], lacks[at[at >= 0]] = values[at >= 0], False
        return _array(dense, lacks)


def _until(metric: MetricColumn, rows: int) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return the values in the first `rows` rows, and which rows have them."""
    values = metric.values.values
    at = metric.rows.values[: len(values)]
    stop = int(np.searchsorted(at, rows))
    return at[:stop], values[:stop]


def _array(values: npt.NDArray[Any], lacks: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return values as an Arrow array; NaN stays NaN. Not pa.array, which imports pandas."""
    data = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    known = None if lacks is None else pa.py_buffer(np.packbits(~lacks, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(data)])


def _repeated(text: str | None, count: int) -> pa.Array:
    if text is None:
        return pa.nulls(count, _TYPES["text"])
    data = text.encode("utf-8", "replace")
    ends = np.arange(count + 1, dtype=np.int64) * len(data)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(_TYPES["text"], count, buffers)


def _whole(values: Floats) -> pa.Array:
    is_whole = np.abs(values) < 2**53
    return _array(np.where(is_whole, values, 0.0).astype(np.int64), ~is_whole)


def _times(seconds: Floats) -> pa.Array:
    is_time = np.abs(seconds) < _FAR_S
    micros = np.round(np.where(is_time, seconds, 0.0) * 1e6).astype(np.int64)
    return _array(micros, ~is_time).cast(_TYPES["time"])


def _time(seconds: float | None) -> int | None:
    return round(seconds * 1e6) if seconds is not None and abs(seconds) < _FAR_S else None
