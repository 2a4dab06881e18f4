"""Where the time went, on the Overview: a bar, a sentence, their figures."""

from __future__ import annotations

import html
import re

from tests.dashboard.timed_runs import write_timed_run
from tests.dashboard.views.pages import open_page
from tests.lengths import in_make_faults
from tests.made_runs import write_run
from toolkit.telemetry.runs import record_source
from toolkit.telemetry.runs.sources.local_store import LocalStore


def ledger_data(tab):
    """Return the words of the bar, of the table and of the sessions, in this order."""
    sent = [data["html"] for data in tab.sent("html")]
    return [html.unescape(re.sub("<[^>]+>+", "|", one)) for one in sent if "telemetry-ledger" in one]


def test_the_bar_says_how_much_of_the_time_was_training(logs):
    write_timed_run(logs, "r", noise=0.0)

    tab = open_page("overview", "r")

    bar, table = ledger_data(tab)
    words = [word for word in bar.split("|") if word]
    assert words[:3] == ["Goodput 78 %", "35 m 20 s of wall time", "training"]
    assert words[2::2] == [
        *("training", "waiting for data", "validation", "checkpoints", "start-up", "unaccounted")
    ]
    assert "training|27 m 40 s|78 %" in table.replace("||", "|")


def test_much_waiting_for_data_is_reported_with_advice(logs):
    write_timed_run(logs, "r", shares={"training": 0.6, "data_wait": 0.35})

    assert "Try more loader workers" in open_page("overview", "r").said()


def test_every_session_of_a_resumed_run_has_a_bar_and_what_was_done_again_is_shown(logs):
    write_timed_run(logs, "r", sessions=(range(1, 61), range(41, 101)), perf_tags=("a", "b"))

    tab = open_page("overview", "r")

    bar, table, sessions = ledger_data(tab)
    assert "in 2 sessions" in bar
    assert "rework after a crash" in table
    assert sessions.index("Session 1 · a") < sessions.index("Session 2 · b")
    assert "The 10 m between sessions are not counted." in tab.said()


def test_energy_and_notes_are_shown_where_there_are_any(logs):
    write_timed_run(logs, "r", power_w=360.0)

    tab = open_page("overview", "r")

    assert all("kWh" in part for part in ledger_data(tab)[:2])
    assert "Power is known for" in tab.said()


def test_a_plain_loop_has_an_inferred_ledger_that_says_so(logs):
    write_timed_run(logs, "r", shares={})

    tab = open_page("overview", "r")

    assert "Goodput about 9" in ledger_data(tab)[0]
    assert "* Inferred" in tab.said()


def test_a_run_without_steps_has_no_ledger(logs):
    write_run(logs, "r", [], status="starting")
    write_run(logs, "s", [{"event": "start", "time": 1.7e9, "elapsed": 0.0, "seq": 0, "session": 1}])

    for run in ("r", "s"):
        tab = open_page("overview", run)

        assert ledger_data(tab) == []
        assert "Time breakdown" not in tab.said()


@in_make_faults
def test_a_long_log_is_added_up_a_part_at_a_time_and_says_how_far_it_is(logs, monkeypatch):
    write_timed_run(logs, "r", sessions=(range(1, 1001),))
    monkeypatch.setattr(record_source, "LONGEST", 50)
    monkeypatch.setattr(LocalStore, "time_spent", _without_time(LocalStore.time_spent))

    tab = open_page("overview", "r")

    # No figure and no advice from a part of the records.
    assert "Adding up where the time went" in tab.said()
    assert ledger_data(tab) == []
    for _ in range(200):
        tab.run()
        if ledger_data(tab) and "so far" not in ledger_data(tab)[0]:
            break
    assert "of wall time|" in ledger_data(tab)[0]


def _without_time(time_spent):
    return lambda store, key, *, wait_s=0.0: time_spent(store, key, wait_s=0.0)


def test_what_spans_put_on_the_step_records_is_no_metric_of_its_own(logs):
    write_run(
        logs,
        "r",
        curves={
            "mine": float,
            "ledger/training": lambda step: 0.4,
            "time/forward": lambda step: 0.1,
            "device_time/forward": lambda step: 0.1,
        },
    )

    shown = open_page("overview", "r").said()

    assert "mine" in shown.splitlines()
    assert "ledger/" not in shown
    assert "time/forward" not in shown
