"""A critical alert reaches a person who is elsewhere, and the latest events are a short list."""

from __future__ import annotations

import pytest

from dashboard.components.event_list import event_lines
from dashboard.components.frame import tab_title
from tests.dashboard.views.pages import open_page
from tests.made_runs import finding, finding_record, write_run
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.store import RunCard


def test_a_lost_run_says_what_to_do_now(logs):
    config = {
        "config": {"process": [{"type": "tiny_lora_trainer", "training_folder": "/out", "name": "a_b"}]}
    }
    write_run(
        logs,
        "r",
        status="lost",
        start={**config, "command_line": ["run.py", "/a_*b*.yaml"]},
        extra=[{"event": "checkpoint", "session": 1, "global_step": 50, "checkpoint_path": "/out/**50**.pt"}],
    )

    tab = open_page("overview", "r")
    words = tab.said()

    assert "The run was lost: what now?" in words
    assert "It was last seen at step 99." in words
    assert "Last good checkpoint: step 50" in words
    assert "/out/**50**.pt" in words
    assert "python run.py '/a_*b*.yaml'" in words
    assert "The trainer resumes from the latest checkpoint in its save folder." in words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("stalled", ("The run has stalled: what now?", "No new step since step 99.", "py-spy dump --pid")),
        (
            "failed",
            ("The run failed: what now?", "It ended at step 99.", "Its command line was not recorded"),
        ),
    ],
)
def test_what_is_not_recorded_is_named_as_such(logs, status, words):
    write_run(logs, "r", status=status)

    tab = open_page("overview", "r")

    for part in (*words, "No checkpoint was recorded"):
        assert part in tab.said()


def test_a_critical_alert_is_in_the_title_of_the_tab():
    card = RunCard(
        key="r",
        place="/r",
        name="flux",
        step=21,
        max_steps=100,
        from_zero=True,
        status=Status(name="running", why="", sure=True),
    )
    critical = finding("divergence", severity="critical")

    assert tab_title(card, "●", []) == "● 22% flux"
    assert tab_title(card, "●", [finding("spike")]) == "● 22% flux"
    assert tab_title(card, "●", [critical]) == "⛔ Divergence · 22% flux"


# ---------------------------------------------------------------- latest events


def test_repeated_events_are_one_line():
    steps_and_states = ((3, "resolved"), (3, "open"), (2, "resolved"), (1, "resolved"))
    events = [finding_record("throughput_drop", at, state=state, time=90.0) for at, state in steps_and_states]
    events += [{"event": "completion", "global_step": 100 - step, "time": 80.0} for step in range(6)]

    slower, completion = event_lines(events, 100.0)

    assert "Slower than before resolved" in slower
    assert "2 earlier" in slower
    assert completion.endswith("Completion at step 100 :gray[20 s ago · 5 earlier]")


def test_a_session_starts_once_and_errors_stay_apart():
    starts = [{"event": "start", "session": session, "time": 1.0} for session in (2, 2, 1, 1)]
    errors = [{"event": "error", "id": name, "message": f"{name}Error: no"} for name in ("Key", "Value")]

    lines = event_lines([*errors, *starts], 2.0)

    assert [line.split(" :gray")[0] for line in lines[2:]] == ["Session 2 started", "Session 1 started"]
    assert "KeyError" in lines[0]
    assert "ValueError" in lines[1]
