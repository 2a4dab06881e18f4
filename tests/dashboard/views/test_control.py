"""Asking a run for something: off with a reason, asked, pending, and what the run itself answered."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.dashboard.views.pages import open_page, open_settings, questions
from tests.lengths import in_make_faults
from tests.made_runs import append, finding_record, write_run
from toolkit.telemetry.runfolder.control import read_request
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runfolder.layout import CONTROL

TAKES = {
    "log_every_now": 20,
    "log_every": [5, 2000],
    "actions": ["save", "sample", "save_and_stop", "stop", "explode"],
    "knobs": {
        "lr_scale": {"type": "float", "low": 0.1, "high": 10.0, "value": None},
        "depth": {"type": "int", "low": 1, "high": 9, "value": 3},
        "frozen": {"type": "bool", "value": True},
        "note": {"type": "text", "value": "hello"},
    },
}


@pytest.fixture
def run(logs, training):
    """A run of a live process that takes requests."""
    return write_run(logs, "r", status="running", pid=training, control=TAKES)


def answer(folder, request_id, status, **more):
    """Write what the run says to a request."""
    record = {"event": "control_change", "time": time.time(), "id": request_id, "status": status}
    append(folder, [{**record, "setting": "log_every", **more}])


def controls(tab):
    buttons = [item for item in tab.sidebar.button if item.label != "Settings"]
    return [*buttons, *tab.sidebar.number_input, *tab.sidebar.toggle]


# ---------------------------------------------------------------- on and off


def test_a_live_run_can_be_asked_for_what_it_declares_and_we_know(run):
    tab = open_page("overview", "r")

    assert controls(tab)
    assert not any(item.disabled for item in controls(tab))
    assert "every 20 steps" in tab.said()
    labels = [item.label for item in controls(tab) if item.label.startswith(("Sa", "St", "ex"))]
    assert labels == ["Save", "Sample", "Save and stop", "Stop"]
    # Beyond its limits a browser shows what was typed, and says nothing of it to the server.
    assert [(box.min, box.max) for box in tab.sidebar.number_input] == [(None, None)] * 3


def test_a_run_that_takes_no_requests_says_so(logs):
    write_run(logs, "r", status="running")

    tab = open_page("overview", "r")

    assert "Control is disabled for this run" in tab.said()
    assert not controls(tab)


def test_a_read_only_dashboard_asks_nothing_and_changes_nothing(run, logs, look_at):
    append(run, [finding_record("divergence", 5, severity="critical")])
    write_labels(run, Labels(muted=("plateau",), other={"pinned_metrics": ["lr", 7, "gone", "lr"]}))
    look_at(logs, read_only=True)

    tab, notes, alerts = (open_page(page, "r") for page in ("overview", "config_notes", "alerts"))

    assert "--read-only" in tab.said()
    assert not controls(tab)
    assert "Pinned metrics" not in [item.label for item in tab.multiselect]
    assert "the dashboard is read-only" in notes.said()
    assert notes.text_input(key="_name r").disabled
    assert notes.multiselect(key="_tags r").disabled
    assert "Divergence" in alerts.headings()
    assert not [item.label for item in alerts.button if "seen" in item.label or "ute" in item.label]
    assert "Started with --read-only" in open_settings().said().replace("`", "")


def test_a_folder_that_cannot_be_written_to_is_not_asked(run, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)

    tab = open_page("overview", "r")

    assert "The run's folder is not writable." in tab.said()
    assert not controls(tab)


# ---------------------------------------------------------------- asked and answered


def test_apply_writes_the_request_and_shows_it_as_pending(run):
    tab = open_page("overview", "r")
    tab.sidebar.number_input[0].set_value(50)

    tab.button_called("Apply").click().run()

    written = json.loads((run / CONTROL).read_text())
    assert written["log_every"] == 50
    assert written["id"] == read_request(run).id
    assert "log every 50: pending, sent" in tab.said()


@pytest.mark.parametrize(
    ("typed", "limit"),
    [
        (5000, "at most 2000"),
        (4, "at least 5"),
        pytest.param(-1, "at least 5", marks=in_make_faults),
        pytest.param(2**52, "at most 2000", marks=in_make_faults),
    ],
)
def test_a_log_interval_outside_the_limits_is_refused_and_not_the_old_one_sent(run, typed, limit):
    tab = open_page("overview", "r")
    tab.sidebar.number_input[0].set_value(typed).run()

    assert f"log every {typed} is out of range: 5 to 2000." in tab.said(), "before anything is asked"

    tab.button_called("Apply").click().run()

    assert tab.sidebar.number_input[0].value == typed
    assert f"log every {typed} is out of range: 5 to 2000. Nothing was sent." in tab.said()
    assert "pending" not in tab.said()
    assert not (run / CONTROL).exists()

    tab.sidebar.number_input[0].set_value(30)
    tab.button_called("Apply").click().run()

    assert "Nothing was sent" not in tab.said()
    assert read_request(run).log_every == 30


@pytest.mark.parametrize(
    ("name", "typed", "limit"),
    [("depth", 10, "1 to 9"), ("depth", 0, "1 to 9"), ("lr_scale", 10.0000001, "0.1 to 10")],
)
def test_a_knob_outside_its_limits_is_refused_and_not_the_old_value_sent(run, name, typed, limit):
    tab = open_page("overview", "r")
    tab.sidebar.number_input(key=f"_knob r {name}").set_value(typed)

    tab.sidebar.button(key=f"_knob r {name} set").click().run()

    assert f"{name} {typed} is out of range: {limit}. Nothing was sent." in tab.said()
    assert not (run / CONTROL).exists()


@pytest.mark.parametrize(
    ("status", "more", "words"),
    [
        (
            "applied",
            {"global_step": 1400, "old": 20, "new": 50},
            "log every 50: applied at step 1,400 (20 → 50)",
        ),
        (
            "clamped",
            {"global_step": 1400, "old": 20, "new": 40, "reason": "at most 40"},
            "log every 50: clamped at step 1,400 (20 → 40) – at most 40",  # noqa: RUF001
        ),
        ("refused", {"reason": "not while evaluating"}, "log every 50: refused – not while evaluating"),  # noqa: RUF001
        ("expired", {"reason": "600 s old"}, "log every 50: expired – 600 s old"),  # noqa: RUF001
    ],
)
def test_the_answer_of_the_run_takes_the_place_of_pending(run, status, more, words):
    tab = open_page("overview", "r")
    tab.sidebar.number_input[0].set_value(50)
    tab.button_called("Apply").click().run()
    answer(run, read_request(run).id, status, **more)

    tab.run()

    assert words in tab.said()
    assert "pending" not in tab.said()


def test_the_answer_to_another_users_request_is_not_ours(run):
    tab = open_page("overview", "r")
    tab.button_called("Apply").click().run()
    answer(run, "another", "applied", global_step=5, old=1, new=2)

    tab.run()

    assert re.search(r"log every 20: waits, (30|[12]?\d) s, sent", tab.said()), "a pause follows each change"
    assert "log_every: applied at step 5" in tab.said(), "it is shown all the same"
    assert "log_every: applied at step 5" in open_page("overview", "r").said(), "also after a reload"


def test_saving_is_asked_without_a_question_and_the_answer_says_where_to(run):
    tab = open_page("overview", "r")

    tab.button_called("Save").click().run()

    assert read_request(run).actions == ("save",)
    assert "save: pending" in tab.said()
    assert [toast.value for toast in tab.toast] == ["save: sent to the run."]

    append(run, [{"event": "checkpoint", "global_step": 7, "checkpoint_path": "out/step_7.safetensors"}])
    answer(run, read_request(run).id, "applied", setting=None, actions=["save"], global_step=7)
    tab.run()

    assert "save: applied at step 7 to out/step_7.safetensors" in tab.said()
    assert any("applied at step 7" in toast.value for toast in tab.toast)


def test_the_interval_of_the_run_itself_is_shown_and_no_error(logs, training):
    folder = write_run(logs, "r", status="running", pid=training, control={**TAKES, "log_every_now": 1})
    tab = open_page("overview", "r")

    assert tab.sidebar.number_input[0].value == 1
    tab.button_called("Apply").click().run()

    assert "out of range" not in tab.said()
    assert "Nothing was sent" in tab.said()
    assert not (folder / CONTROL).exists()


@pytest.mark.parametrize(
    ("label", "action", "warning"),
    [("Stop", "stop", "without saving"), ("Save and stop", "save_and_stop", "saves and then stops")],
)
def test_stopping_is_asked_for_once_more(run, label, action, warning):
    tab = open_page("overview", "r")

    assert label in questions(tab)
    assert warning in tab.said()
    assert "pending" not in tab.said()
    assert not (run / CONTROL).exists(), "a question is no request"

    tab.sidebar.button(key=f"_yes_stop {action} r").click().run()

    assert read_request(run).actions == (action,)


def test_a_run_that_ends_before_it_is_asked_refuses_in_words(run, monkeypatch):
    tab = open_page("overview", "r")

    def refuse(self, key, request):
        from toolkit.telemetry.runs.store import Refused

        raise Refused("the run is finished and cannot answer requests")

    monkeypatch.setattr("toolkit.telemetry.runs.sources.local_store.LocalStore.ask", refuse)

    tab.button_called("Apply").click().run()

    assert not tab.exception
    assert "the run is finished and cannot answer requests" in tab.said()
    assert "pending" not in tab.said()


def test_answers_are_events_of_the_run_on_other_pages_too(run):
    answer(run, "x", "applied", global_step=40, old=20, new=50)

    assert "log_every applied at step 40 (20 → 50)" in open_page("overview", "r").said()

    table = open_page("machine", "r").tables()[-1]

    assert any("log_every: applied" in what for what in table["details"])
