"""Bars of spans: their colours, their looks, and names that are only names."""

from __future__ import annotations

import json

import numpy as np

from dashboard.charts.ledger import bar_of
from dashboard.charts.spans import Bar, SpanBars, bars_figure, span_color, spans_figure
from tests.dashboard.timed_runs import ledger
from toolkit.telemetry.reports.ledger_labels import label_of
from toolkit.telemetry.timing.names import (
    BACKWARD,
    CHECKPOINT_SAVE_FINALIZATION,
    DATA_LOADING,
    ENTRIES,
    ENTRY_OF,
    FORWARD,
    OPTIMIZER_UPDATE,
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


def test_the_parts_of_a_step_have_colours_of_their_own_and_every_name_keeps_its_own():
    parts = {span_color(name) for name in (FORWARD, BACKWARD, OPTIMIZER_UPDATE, DATA_LOADING)}

    assert len(parts) == 4
    assert span_color("my own") == span_color("my own")


def test_a_span_has_the_colour_of_its_entry_in_the_ledger():
    looks = {part["words"]: part["color"] for part in bar_of(ledger(**dict.fromkeys(ENTRIES, 0.1)).lines)}

    for name, entry in {**ENTRY_OF, "checkpoint_save": "checkpoint", "eval": "validation"}.items():
        if name not in (TRAINING_ITERATION, CHECKPOINT_SAVE_FINALIZATION):
            assert span_color(name) == looks[label_of(entry)], name
    assert span_color("my own") not in {look for words, look in looks.items() if words != "other spans"}


def test_a_bar_lies_at_its_time_and_is_as_long_as_its_span():
    drawn = figure(bars(texts=["40 ms", "41 ms"]))
    trace = drawn["data"][0]

    assert np.diff(trace["base"]).tolist() == [1000.0]
    assert trace["x"] == [40.0, 40.0]
    assert trace["customdata"] == [[0], [1]]
    low, high = drawn["layout"]["xaxis"]["range"]
    assert high - low == 2000
    assert trace["base"][0] == low


def test_failed_open_and_died_spans_look_different():
    looks = {
        look: figure(bars(state=look))["data"][0]["marker"] for look in ("done", "failed", "open", "died")
    }

    assert looks["failed"]["color"] == "@critical"
    assert "pattern" not in looks["done"]
    assert looks["open"]["pattern"]["shape"] == "/"
    assert looks["died"]["line"]["color"] == "@critical"


def test_a_name_or_an_attribute_that_looks_like_markup_is_text():
    trace = figure(bars(name="<b>%{x}</b>", texts=["a = <i>1</i>\nb"]))["data"][0]

    assert trace["text"] == ["a = &lt;i&gt;1&lt;/i&gt;<br>b"]
    assert "%{x}" not in trace["hovertemplate"].removesuffix("%{text}<extra></extra>")
    assert "<b>%" not in trace["name"]


def test_in_a_row_a_rank_each_name_is_in_the_legend_once():
    drawn = figure(*(bars(legend="forward", row=[row]) for row in range(3)))

    assert [trace["showlegend"] for trace in drawn["data"]] == [True, False, False]
    assert len({trace["legendgroup"] for trace in drawn["data"]}) == 1


def test_what_is_in_view_is_shaded_below_the_events():
    events = [Bar("sessions", 1.7e9, 100.0, "session 1")]

    assert bars_figure(events, "r")["layout"]["shapes"] == []
    shape = bars_figure(events, "r", shaded=(1.7e9 + 10, 1.7e9 + 20))["layout"]["shapes"][0]
    assert shape["x1"] - shape["x0"] == 10_000


def test_bars_and_short_events_are_drawn_on_rows_of_their_own():
    nasty = "<img src=x onerror=alert(1)>"
    several = [Bar(nasty, 10.0, 2.0, nasty), Bar("save", 20.0, 0.0, "x"), Bar("save", 30.0, 1.0, "y")]
    found = bars_figure(several, "r")

    assert [trace["type"] for trace in found["data"]] == ["bar", "bar", "scatter"]
    assert "<img" not in json.dumps(found)
    assert not bars_figure([], "r")["data"]
