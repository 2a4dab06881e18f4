"""A critical alert reaches a person who is elsewhere, and the latest events are a short list."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from dashboard.components.event_list import event_lines
from dashboard.components.frame import tab_title
from tests.dashboard.troubled_runs import steps, with_findings
from tests.dashboard.views.pages import announced, is_well, open_page, said
from tests.made_runs import write_run
from toolkit.telemetry.diagnostics.finding import Finding
from toolkit.telemetry.runfolder.labels import Labels
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.store import RunCard


def alert(kind, severity):
    return Finding(id=kind, kind=kind, severity=severity, message="m", state="open", start_step=5)


def test_what_was_muted_is_not_announced(logs):
    write_run(logs, "r", with_findings(steps("divergence")), labels=Labels(muted=("divergence",)))

    tab = open_page("overview", "r")
    data = announced(tab)

    assert "what now" not in said(tab), "the run finished"
    assert (data["count"], data["say"], data["about"]) == (0, "", "")


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
    words = said(tab)

    assert is_well(tab)
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

    assert is_well(tab)
    for part in (*words, "No checkpoint was recorded"):
        assert part in said(tab)


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
    critical = alert("divergence", "critical")

    assert tab_title(card, "●", []) == "● 22% flux"
    assert tab_title(card, "●", [alert("spike", "warning")]) == "● 22% flux"
    assert tab_title(card, "●", [critical]) == "⛔ Divergence · 22% flux"


# ---------------------------------------------------------------- latest events


def finding(number, state="resolved"):
    return {"event": "finding", "id": f"f{number}", "kind": "throughput_drop", "state": state, "time": 90.0}


def test_repeated_events_are_one_line():
    events = [finding(3), finding(3, "open"), finding(2), finding(1)]
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
