"""Every answer of a RunStore about one run, in a form that `==` compares byte for byte."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from toolkit.telemetry.runs.completions import CompletionQuery
from toolkit.telemetry.runs.curve_tiles import TileQuery
from toolkit.telemetry.runs.store import RunStore

WAIT_S = 120.0

MAY_DIFFER = frozenset(
    {
        *("key", "place", "path", "problem", "is_cut", "why", "writable", "control_refusal"),
        *("read_ms", "from_cache", "lag_s", "behind_bytes", "version"),
    }
)
"""Fields that depend on where a run is kept, or on when it was read."""

_AXES = ("step", "time", "elapsed", "epoch")


def comparable(value: Any) -> Any:
    """Return `value` with every number as its bytes: NaN equals itself, and 0.0 is not -0.0."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {
            field.name: comparable(getattr(value, field.name))
            for field in fields(value)
            if field.name not in MAY_DIFFER
        }
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, Mapping):
        return [(comparable(name), comparable(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    return value


def rounded(grid: Any) -> Any:
    """Return a RankGrid without the digits that depend on the order in which values were added."""
    return type(grid)(
        **{field.name: getattr(grid, field.name) for field in fields(grid) if field.name != "mean"},
        mean=np.array([[float(f"{value:.11g}") for value in row] for row in grid.mean]),
    )


def answers_of(store: RunStore, key: str) -> dict[str, Any]:
    """Return what `store` answers, by question. The run must have ended: a live one changes in between."""
    return {question: comparable(answer) for question, answer in _ask(store, key)}


def _ask(store: RunStore, key: str) -> Iterator[tuple[str, Any]]:
    ranks = list(store.ranks(key))
    yield "ranks", ranks
    for rank in ranks:
        health = store.refresh(key, wait_s=WAIT_S, rank=rank)
        assert health.complete
        yield f"health of rank {rank}", health
        yield f"metrics of rank {rank}", store.metrics(key, rank=rank)
        spans = store.spans(key, wait_s=WAIT_S, rank=rank)
        yield f"spans of rank {rank}", spans
        places = list(zip(spans.offset.tolist(), spans.length.tolist(), strict=True))
        yield f"span records of rank {rank}", store.span_records(key, places, rank=rank)
        yield f"records of rank {rank}", b"".join(store.record_lines(key, rank=rank))
    names = [info.name for info in store.metrics(key)]
    yield "card", store.card(key)
    yield "meta", store.meta(key)
    yield "sessions", store.sessions(key)
    yield "manifest sessions", store.manifest_sessions(key)
    for name in (*names, "never logged"):
        yield from _ask_about(store, key, name)
    yield "table", store.table(key)
    yield "table of some", store.table(key, [*names[1:4], "never logged"])
    yield "cells", {name: column.tolist() for name, column in store.table(key, names, rows=(2, 40)).items()}
    yield "events", store.events(key)
    yield "two kinds of events", store.events(key, ("start", "end"), limit=3)
    yield "counts", sorted(store.count_events(key).items())
    yield from _ask_about_completions(store, key)
    yield "trace", b"".join(store.trace(key))
    assert store.examine(key, wait_s=WAIT_S) == 1.0
    yield "findings", store.findings(key)
    yield "time spent", store.time_spent(key, wait_s=WAIT_S)


def _ask_about(store: RunStore, key: str, name: str) -> Iterator[tuple[str, Any]]:
    for axis in _AXES:
        yield f"{name} by {axis}", store.series(key, name, axis=axis)  # type: ignore[arg-type]
    for axis in (*_AXES, "progress", "metric:train_loss"):
        whole = store.tiles(key, name, TileQuery(fit=20, times=True), axis=axis)
        yield f"tiles of {name} by {axis}", whole
        some = tuple((piece, level, 0) for piece in range(len(whole.pieces)) for level in (0, 1, 4))
        query = TileQuery(tiles=some, version=whole.version)
        yield f"more tiles of {name} by {axis}", store.tiles(key, name, query, axis=axis)
    whole = store.series(key, name)
    edges = [
        edge for segment in whole.segments for edge in segment.x[[0, -1]].tolist() if math.isfinite(edge)
    ]
    if edges:
        low, high = min(edges), max(edges)
        window = (low + (high - low) / 3, high - (high - low) / 4)
        yield f"part of {name}", store.series(key, name, window=window, buckets=7)
    yield f"{name} of several", store.series_of([key, "no such run"], name, buckets=50)[key]
    yield f"recent {name}", store.recent(key, name, 10)
    yield f"means of {name}", store.means(key, name, 7)
    created = store.card(key).created or 0.0
    yield f"{name} around a time", store.values_around(key, name, created + 20.0, 5)
    for buckets in (1, 50, 128):
        yield (
            f"{name} of all ranks in {buckets}",
            rounded(store.rank_grid(key, name, buckets=buckets, wait_s=WAIT_S)),
        )


def _ask_about_completions(store: RunStore, key: str) -> Iterator[tuple[str, Any]]:
    completions = store.completions(key)
    found = completions.find(CompletionQuery(), wait_s=WAIT_S)
    yield "completions", found
    for query in (CompletionQuery(text="sky"), CompletionQuery(sort="Highest reward", steps=(3, 60))):
        yield f"completions: {query}", completions.find(query, first=1, count=7, wait_s=WAIT_S)
    for one in found.rows[:3]:
        yield f"completion at {one.place}", completions.at(one.place)
        yield f"siblings of {one.place}", completions.siblings(one)
    yield "no completion", completions.at(7)
