"""What can be stopped on the Sweep view: a sentence, a reason for each run, and a request after a question."""

from __future__ import annotations

import os

from dashboard.components import stopping_list
from tests.dashboard.views.pages import open_page, questions
from tests.forecasts.test_stopping import write_sweep
from toolkit.telemetry.runfolder.control import read_request
from toolkit.telemetry.runfolder.layout import CONTROL

TAKES = {"log_every_now": 20, "actions": ["stop"]}


def test_runs_that_can_be_stopped_are_asked_after_a_question(logs):
    write_sweep(logs, (1.0, 1.01, 1.02, 4.0, 6.0), control=TAKES, pid=os.getppid())
    tab = open_page("runs", show="Sweep")

    assert "Can be stopped: 2 of 5 live runs" in tab.said()
    assert "where run-0 had 1.0" in tab.said()

    assert questions(tab) == ["Stop", "Stop", "Stop all 2"]
    assert "Stops after the current step, **without saving**." in tab.said()
    assert not (logs / "run-3" / CONTROL).exists(), "a question is no request"

    tab.button_called("Stop all 2").click().run()

    assert read_request(logs / "run-3").actions == ("stop",)
    assert read_request(logs / "run-4").actions == ("stop",)
    assert "stop: pending" in tab.said()
    assert not (logs / "run-0" / CONTROL).exists()


def test_a_run_that_cannot_be_asked_says_why(logs):
    write_sweep(logs, (1.0, 1.01, 1.02, 4.0, 6.0), control={"actions": ["sample"]}, pid=os.getppid())
    tab = open_page("runs", show="Sweep")

    assert tab.said().count("The script takes no request to stop.") == 1
    assert not questions(tab)


def test_what_fails_there_leaves_the_rest_of_the_sweep(logs, monkeypatch):
    write_sweep(logs, (1.0, 1.01, 1.02, 4.0))
    monkeypatch.setattr(stopping_list, "stopping_of", lambda *_, **__: 1 / 0)

    assert "What can be stopped could not be drawn." in open_page("runs", show="Sweep", may_break=True).said()
