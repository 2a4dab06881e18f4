"""The Sweep page: the answer above the charts, and every kind of log directory."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("streamlit")

from dashboard import session
from tests.dashboard.run_folders import write_run
from tests.dashboard.views import pages
from tests.dashboard.views.pages import button, chart_data, is_well, open_page


def write_sweep(logs, number=12, **more):
    """Write runs of which those with a higher rank have a lower validation loss."""
    for place in range(number):
        rank = (4, 16, 64)[place % 3]
        config = {
            "lora_rank": rank,
            "learning_rate": 10 ** -(2 + place % 5 / 2),
            "seed": place,
            "model": "tiny",
        }
        write_run(
            logs,
            f"run-{place:02d}",
            sessions=(range(3),),
            curves={"train_loss": lambda step: 1.0},
            start={"config": {**config, **more}},
            extra=[
                {
                    "event": "eval",
                    "time": 1.7e9,
                    "global_step": 2,
                    "val_loss": 0.2 - 0.02 * math.log2(rank) + 0.0001 * ((place * 7) % 11),
                    "accuracy": 0.5 + 0.01 * place,
                }
            ],
            status="running" if place == number - 1 else "finished",
        )


def said(tab):
    return pages.said(tab).replace("**", "")


def traces_of(tab):
    figures = [json.loads(json.loads(text)["figure"]) for text in chart_data(tab)]
    return [trace for figure in figures for trace in figure["data"]]


def test_the_page_says_which_run_is_best_and_why(logs):
    write_sweep(logs, 16)
    tab = open_page("sweep")

    assert is_well(tab)
    text = said(tab)
    assert "Best of 15 runs: run-" in text
    assert "with val_loss 0.08" in text
    assert "lora_rank explains the most" in text
    assert "1 still running" in text
    assert "Equal in all runs: model tiny" in text
    assert "Really better?" in text
    assert {trace["type"] for trace in traces_of(tab)} == {"scatter", "bar", "parcoords"}


def test_metric_direction_and_search_come_from_the_link(logs):
    write_sweep(logs)
    tab = open_page("sweep", metric="accuracy", better="Higher is better", q="run-0")

    assert is_well(tab)
    assert "Best of 10 runs: run-09, with accuracy 0.59" in said(tab)


def test_a_metric_that_is_higher_if_better_is_known(logs):
    write_sweep(logs)

    assert "run-10, with accuracy 0.6" in said(open_page("sweep", metric="accuracy"))


def test_few_runs_and_runs_without_settings_have_a_sentence(logs):
    write_sweep(logs, 4)
    for name in ("a", "b", "c"):
        write_run(logs, f"plain-{name}", sessions=(range(3),))

    assert "too few to say why" in said(open_page("sweep", q="run"))
    assert "no recorded settings" in said(open_page("sweep", q="plain"))
    assert "No runs match" in said(open_page("sweep", q="nothing-like-that"))


def test_another_setting_and_colour_redraw_the_scatter_plot(logs):
    write_sweep(logs)
    tab = open_page("sweep", sx="learning_rate", sc="lora_rank")

    scatter = next(trace for trace in traces_of(tab) if trace["type"] == "scatter")
    assert min(scatter["x"]) == pytest.approx(1e-4)
    assert len(scatter["marker"]["color"]) == len(scatter["x"])


def test_the_metric_is_kept_for_the_project_but_not_by_a_viewer(logs, monkeypatch):
    write_sweep(logs)
    tab = open_page("sweep", metric="accuracy")
    button(tab, "Keep as default").click().run()

    assert session.store().project_settings(None).primary_metric == "accuracy"
    assert "with accuracy" in said(open_page("sweep"))
    monkeypatch.setattr(session, "read_only_reason", lambda: "read-only")
    assert not [one for one in open_page("sweep", metric="val_loss").button if one.label == "Keep as default"]


def test_the_axes_of_the_parallel_coordinates_come_from_the_link(logs):
    write_sweep(logs)
    tab = open_page("sweep", axes="learning_rate")

    (drawn,) = [trace for trace in traces_of(tab) if trace["type"] == "parcoords"]
    assert [axis["label"] for axis in drawn["dimensions"]] == ["learning_rate", "val_loss"]

    assert tab.multiselect(key="axes").proto.query_param_key == "axes"
