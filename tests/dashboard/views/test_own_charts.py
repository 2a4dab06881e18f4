"""Charts of one's own: metrics, patterns and formulas in one chart, kept in a view of the project."""

from __future__ import annotations

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import ProjectSettings, read_project, write_project
from toolkit.telemetry.runs.listing.views import NamedView, OwnChart, views_of, with_view

LOSSES = {"train_loss": lambda step: 4.0 / (step + 1), "val_loss": lambda step: 5.0 / (step + 1)}


@pytest.fixture
def view(logs):
    for name in ("r", "s"):
        write_run(logs, name, curves=LOSSES, sessions=(range(10),))
    charts = (
        OwnChart(title="Overfit", metrics=("= val_loss / train_loss", "*_loss"), axis="metric:train_loss"),
        OwnChart(title="Nothing", metrics=("other/*",)),
    )
    write_project(logs, None, with_view(ProjectSettings(), NamedView(name="Mine", charts=charts)))


def own(tab):
    return [one for one in tab.sent("title") if one["title"] == "Overfit"]


def test_a_view_in_the_link_draws_its_charts_for_the_run(view):
    tab = open_page("metrics", "r", view="Mine")

    (chart,) = own(tab)
    assert [curve["metric"] for curve in chart["curves"]] == [
        "= val_loss / train_loss",
        "train_loss",
        "val_loss",
    ]
    assert next(curve["label"] for curve in chart["curves"]) == "val_loss / train_loss"
    assert chart["axis"] == "metric:train_loss"
    assert "was logged here." in tab.said()
    assert own(open_page("metrics", "r")) == []


def test_the_same_view_compares_runs(view):
    (chart,) = own(open_page("compare", runs="r,s", view="Mine"))

    assert [(curve["run"], curve["metric"]) for curve in chart["curves"]][:4:3] == [
        *(("r", "= val_loss / train_loss"), ("s", "= val_loss / train_loss")),
    ]


def test_a_chart_is_added_and_removed(view, logs):
    tab = open_page("metrics", "r")
    tab.multiselect(key="_own_metrics").set_value(["train_loss", "= val_los"]).run()
    assert "did you mean val_loss?" in tab.said()
    assert tab.button_called("Add").disabled
    tab.multiselect(key="_own_metrics").set_value(["train_loss", "= val_loss - train_loss"]).run()
    tab.button_called("Add").click().run()

    (chart,) = views_of(read_project(logs, None))["My charts"].charts
    assert (chart.title, chart.metrics) == (
        "train_loss, = val_loss - train_loss",
        ("train_loss", "= val_loss - train_loss"),
    )
    tab.button(key="_own_off 0").click().run()
    assert views_of(read_project(logs, None))["My charts"].charts == ()
