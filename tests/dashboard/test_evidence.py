"""A chart of an alert shows where it began, how far it goes, and what its numbers were measured by."""

from __future__ import annotations

import json

import pytest

from dashboard.components.curve_chart import Band, ChartSpec, chart_data
from dashboard.components.evidence import around
from tests.made_runs import finding
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.runs.store import MetricInfo


def info(name="train_loss", count=1000, last_step=9_990.0):
    return MetricInfo(
        name=name, event="step", count=count, last=1.0, last_step=last_step, low=0.0, high=2.0, non_finite=0
    )


def alert(kind="spike", **more):
    return finding(kind, **{"start_step": 5_000, "noticed_step": 5_050, "end_step": 5_100, **more})


def test_what_continues_is_shaded_to_the_end_and_marked_where_it_began():
    evidence = around(alert(end_step=None, severity="critical"), info())

    assert evidence.bands[0] == Band(start=5_000, end=9_990, tone="critical")
    assert evidence.window[1] < 9_990
    late = around(alert(start_step=9_900, noticed_step=9_950, end_step=None), info())
    assert 9_990 <= late.window[1] < 10_050, "nothing is shown after the last record"
    low, high = around(
        alert(start_step=0, noticed_step=0, end_step=None), info(count=1, last_step=0.0)
    ).window
    assert low < high
    assert around(alert(start_step=None), info()) is None


@pytest.mark.parametrize(
    ("kind", "numbers", "lines"),
    [
        ("spike", {"level": 0.5, "peak": 9.0}, [(0.5, "level before 0.5")]),
        ("overfit", {"best": 0.25, "best_step": 400}, [(0.25, "best 0.25")]),
        ("throughput_drop", {"usual": 8.0, "now": 2.0}, [(8.0, "typical 8"), (2.0, "now 2")]),
        ("nan", {}, []),
        ("spike", {"level": "high", "peak": None}, []),
        ("spike", {"level": float("nan")}, []),
    ],
)
def test_the_level_it_was_measured_by_is_a_line(kind, numbers, lines):
    found = around(alert(kind, evidence=numbers), info()).levels

    assert [(level.y, level.text) for level in found] == lines


@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_kind_can_be_drawn(kind):
    evidence = around(alert(kind, evidence={"level": 1.0, "best": 1.0, "usual": 1.0, "noise": 0.1}), info())
    spec = ChartSpec(
        title="m",
        window=evidence.window,
        marks=evidence.marks,
        bands=evidence.bands,
        levels=evidence.levels,
        axis="step",
    )

    sent = chart_data(spec, refresh_s=None)

    assert len(sent["bands"]) == len(evidence.bands)
    assert json.loads(json.dumps(sent, allow_nan=False)) == sent
