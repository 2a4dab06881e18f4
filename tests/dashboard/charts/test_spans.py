"""Bars of spans: their colours, their looks, and names that are only names."""

from __future__ import annotations

import numpy as np

from dashboard.charts.palette import entry_color
from dashboard.charts.spans import Bar, SpanBars, bars_figure, span_color, spans_figure
from toolkit.telemetry.timing.names import (
    CHECKPOINT_SAVE_FINALIZATION,
    ENTRIES,
    ENTRY_OF,
    IN_OTHER,
    TRAINING_ITERATION,
)


def bars(name="forward", state="done", texts=("40 ms",), **changed):
    count = len(texts)
    return SpanBars(
        **{
            "name": name,
            "state": state,
            "row": [0] * count,
            "start": 1.7e9 + np.arange(count),
            "seconds": np.full(count, 0.04),
            "texts": texts,
            "ids": list(range(count)),
            **changed,
        }
    )


def figure(*groups):
    return spans_figure(groups, ["forward"], (1.7e9, 1.7e9 + 2), "r")


def test_a_span_has_the_colour_of_its_entry_in_the_ledger():
    looks = {entry: entry_color(entry) for entry in ENTRIES}

    for name, entry in {**ENTRY_OF, "checkpoint_save": "checkpoint", "eval": "validation"}.items():
        if name not in (TRAINING_ITERATION, CHECKPOINT_SAVE_FINALIZATION):
            assert span_color(name) == looks[entry], name
    assert span_color("my own") not in {look for entry, look in looks.items() if entry != IN_OTHER}


def test_a_bar_lies_at_its_time_and_is_as_long_as_its_span():
    drawn = figure(bars(texts=["40 ms", "41 ms"]))
    trace = drawn.data[0]

    assert np.diff(trace.base).tolist() == [1000.0]
    assert trace.x.tolist() == [40.0, 40.0]
    assert trace.customdata == ([0], [1])
    low, high = drawn.layout.xaxis.range
    assert high - low == 2000
    assert trace.base[0] == low


def test_failed_open_and_died_spans_look_different():
    looks = {look: figure(bars(state=look)).data[0].marker for look in ("done", "failed", "open", "died")}

    assert looks["failed"].color == "var(--critical)"
    assert looks["done"].pattern.shape is None
    assert looks["open"].pattern.shape == "/"
    assert looks["died"].line.color == "var(--critical)"


def test_bars_and_short_events_are_drawn_on_rows_of_their_own():
    nasty = "<img src=x onerror=alert(1)>"
    several = [Bar(nasty, 10.0, 2.0, nasty), Bar("save", 20.0, 0.0, "x"), Bar("save", 30.0, 1.0, "y")]
    found = bars_figure(several, "r")

    assert [trace.type for trace in found.data] == ["bar", "bar", "scatter"]
    assert "<img" not in found.to_json()
    assert not bars_figure([], "r").data
