"""The Overview leads with what matters: the loss or the reward, what was pinned, and open findings alone."""

from __future__ import annotations

import json

from tests.dashboard.views.pages import open_page
from tests.made_runs import finding_record, write_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.labels import read_labels, read_project
from toolkit.telemetry.runs.columns import run_log
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.store import Health


def drawn(tab):
    """Return the charts of the page by their titles."""
    return {data["title"]: data for data in tab.curve_charts()}


def test_a_run_without_a_loss_leads_with_its_reward(logs):
    names = ("rewards/format", "kl", "reward_mean", "process_cpu_percent")
    write_run(logs, "r", curves=dict.fromkeys(names, float))

    tab = open_page("overview", "r")

    assert next(iter(tab.cards())) == "reward_mean"
    assert list(tab.cards())[-1] == "Process CPU"
    assert next(iter(drawn(tab))) == "reward_mean"


def test_pinned_metrics_follow_the_loss_in_their_order_and_stay(logs):
    write_run(logs, "r", curves=dict.fromkeys(("train_loss", "a", "b", "c"), float))
    tab = open_page("overview", "r")
    assert list(drawn(tab)) == ["Loss", "a", "b", "c"]

    tab.multiselect(key="_Pinned metrics r").set_value(["c", "a"]).run()

    assert list(drawn(tab)) == ["Loss", "c", "a", "b"]
    assert read_project(logs, None).pinned_metrics == ("c", "a")
    assert list(drawn(open_page("overview", "r"))) == ["Loss", "c", "a", "b"]

    # For every run of the project.
    write_run(logs, "s", curves=dict.fromkeys(("train_loss", "a", "b", "c"), float))
    open_page("overview", "s").multiselect(key="_Pinned metrics s").set_value(["a", "c"]).run()

    assert list(drawn(open_page("overview", "r"))) == ["Loss", "a", "c", "b"]
    assert read_labels(logs / "s").other == {}


def test_hidden_metrics_are_left_out_until_they_are_searched_for(logs):
    write_run(logs, "r", curves=dict.fromkeys(("train_loss", "a", "b"), float))
    tab = open_page("overview", "r")
    tab.multiselect(key="_Hidden metrics r").set_value(["a"]).run()

    assert list(drawn(tab)) == ["Loss", "b"]
    assert list(drawn(open_page("metrics", "r"))) == ["train_loss", "b"]
    assert list(drawn(open_page("metrics", "r", filter="^a$"))) == ["a"]


def test_only_open_and_critical_findings_are_marked_and_only_on_their_metric(logs):
    resolved = {"state": "resolved", "resolved_step": 50}
    write_run(
        logs,
        "r",
        curves={"train_loss": lambda step: 2.0 - step / 100, "lr": lambda step: 1e-4},
        extra=[
            *(finding_record("plateau", step, **resolved) for step in range(10, 50, 10)),
            finding_record("plateau", 60),
            finding_record("divergence", 70, severity="critical", **resolved),
        ],
    )

    marks = {
        title: [mark["step"] for mark in chart.get("marks", ())]
        for title, chart in drawn(open_page("overview", "r")).items()
    }

    assert marks == {"Loss": [60, 70], "Learning rate": []}


def test_a_loss_that_only_wobbles_is_called_flat_and_shown_as_it_was_logged(logs):
    write_run(
        logs, "r", curves={"train_loss": lambda step: 1.0 + 0.1 * (step * 7919 % 13)}, sessions=(range(300),)
    )

    tab = open_page("overview", "r")

    assert "flat" in json.dumps(tab.sent())
    assert tab.cards()["Train loss"] == "1"
    assert "Loss" in tab.said()


def test_a_resumed_run_says_in_one_line_whether_it_is_the_same_training(logs):
    for steps, resumed in ((range(1, 21), False), (range(11, 26), True)):
        with TelemetryLogger("twice", log_dir=logs, log_every=1, resume=resumed) as log:
            for step in steps:
                log.log_step(step, train_loss=3.0 / step + (step * 7919 % 13) / 60, lr=0.1)
    write_run(logs, "once", curves={"train_loss": float})

    assert "Resumed from step 10: the same training" in open_page("overview", "twice").said()
    assert "Resumed from" not in open_page("overview", "once").said()


def test_the_rest_of_a_live_run_is_forecast_and_never_among_the_values(logs):
    write_run(logs, "live", status="running", age_s=-600.0, summary={"max_steps": 200})
    write_run(logs, "few", sessions=(range(5),), status="running", summary={"max_steps": 200})
    write_run(logs, "over")
    tab = open_page("overview", "live")
    found = tab.forecast()

    assert [words[0] for words in found["said"][:2]] == ["Final loss", "Ends"]
    assert "90 %" in found["said"][0][1]
    band = found["bands"]["train_loss"]
    assert (band["steps"][0], band["steps"][-1]) == (99, 200)
    assert "forecast" in tab.switches()["view"]
    assert [chart["title"] for chart in tab.curve_charts() if chart.get("forecast")] == ["Loss"]
    assert all("bands" not in chart for chart in tab.curve_charts())
    assert (
        open_page("overview", "few")
        .forecast()["said"][0][1]
        .startswith("cannot be forecast: train_loss has 5")
    )
    assert open_page("overview", "over").forecast() is None
    assert not open_page("overview", "over").switches()["forecast"]


def test_metrics_works_out_a_forecast_only_if_it_is_looked_at(logs):
    write_run(logs, "live", status="running", age_s=-600.0, summary={"max_steps": 200})

    assert open_page("metrics", "live").forecast()["bands"] is None
    asked = open_page("metrics", "live", forecast="true")
    assert list(asked.forecast()["bands"]) == ["train_loss"]
    assert asked.forecast()["said"] == []


def test_the_cards_of_a_run_that_is_still_being_read_say_how_much_was_read(logs, monkeypatch):
    write_run(logs, "r", sessions=[range(500)])
    partly = Health(bytes_read=1, bytes_pending=4)
    monkeypatch.setattr(RunLog, "refresh", lambda self, _: (self._read_block() and partly) or partly)
    monkeypatch.setattr(run_log, "_BLOCK_BYTES", 20_000)

    assert set(open_page("overview", "r").card_notes()) == {"20% read"}
