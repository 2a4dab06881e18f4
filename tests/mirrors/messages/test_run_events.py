"""Which of a run's records are worth a message, each once, with the state of the run."""

from __future__ import annotations

import itertools

import pytest

from toolkit.telemetry.mirrors.messages.message import RunState
from toolkit.telemetry.mirrors.messages.run_events import RunEventReader

_seq = itertools.count()


def record(event, **fields):
    return {"event": event, "seq": next(_seq), "session": 1, "time": 1_700_000_000.0, **fields}


def step(number, **fields):
    return record("step", global_step=number, **fields)


def finding(**changes):
    fields = {
        "id": "1-nan-train_loss-40",
        "kind": "nan",
        "severity": "critical",
        "metric": "train_loss",
        "start_step": 40,
        "noticed_step": 40,
        "state": "open",
        "message": "train_loss is NaN from step 40 on.",
        "causes": ["The learning rate is too high.", "fp16"],
        "advice": ["Go back to the last checkpoint.", "bf16"],
        "began_in_session": 1,
    }
    return record("finding", **{**fields, **changes})


def story(redact=lambda texts: texts):
    return RunEventReader(RunState(run_name="greyjacket"), redact=redact)


def reported(run, *records):
    return [event for one in records for event in run.take(one)]


def words(message):
    return "\n".join([message.title, *message.lines, message.run_state.as_text()])


@pytest.mark.parametrize(
    ("changes", "occasions"),
    [
        ({"severity": "warning"}, []),
        ({"severity": "info"}, []),
        ({"state": "resolved"}, ["finding"]),
        ({"state": "resolved", "began_in_session": 0}, []),
        ({"began_in_session": 0}, ["finding"]),
        ({"kind": "something_new"}, ["finding"]),
        ({"kind": "rule:low enough", "severity": "info"}, ["milestone"]),
        ({"kind": "rule:low enough", "severity": "info", "state": "resolved", "began_in_session": 0}, []),
        ({"kind": "rule:too high"}, ["finding"]),
        # A pause that is short, over, or neither.
        ({"kind": "hang", "severity": "info"}, []),
        ({"kind": "hang", "severity": "warning", "state": "resolved"}, []),
        ({"kind": "hang", "severity": "warning"}, ["stall"]),
        ({"kind": "hang"}, ["stall"]),
    ],
)
def test_which_findings_are_news(changes, occasions):
    assert [event.occasion for event in reported(story(), step(10), finding(**changes))] == occasions


def test_two_that_notice_one_silence_are_one_stall():
    run = story()
    events = reported(
        run,
        step(10),
        finding(id="a", kind="stalled", severity="warning", message="No step for 70 s after step 10."),
        finding(id="b", kind="hang", severity="critical", message="No step for 100 s."),
        step(11),
        finding(id="c", kind="hang", severity="critical", message="No step for 90 s."),
    )

    assert [(event.occasion, *event.about) for event in events] == [
        ("stall", "stall:1:10"),
        ("stall", "stall:1:11"),
    ]
    assert "No step for 70 s after step 10." in words(events[0])


@pytest.mark.parametrize(
    ("kind", "severities"), [("hang", ("info", "warning")), ("nan", ("warning", "critical"))]
)
def test_what_becomes_serious_is_reported_then_and_once(kind, severities):
    run = story()
    mild, serious = (finding(kind=kind, severity=severity) for severity in severities)

    assert [len(reported(run, one)) for one in (mild, serious, serious)] == [0, 1, 0]
    assert reported(run, finding(kind=kind, severity=severities[1], state="resolved")) == []


# ------------------------------------------------------------ the end


def ended(run, status, reason):
    return run.end(status=status, reason=reason, now=1.0, elapsed_s=7500.0)


def test_of_a_long_error_both_ends_are_reported():
    run = story()
    text = "ValueError: Caught ValueError in worker 3.\n" + "frame " * 900 + "ValueError: the cause"
    reported(run, record("error", type="ValueError", message=text))
    (line,) = ended(run, "failed", "failed").lines

    assert line.startswith("ValueError: Caught ValueError in worker 3.")
    assert line.endswith("ValueError: the cause")


def test_an_error_that_the_run_lived_through_is_not_in_its_end():
    run = story()
    reported(run, record("error", type="ValueError", message="handled"))

    assert ended(run, "finished", "finished").lines == ()


@pytest.mark.parametrize(
    ("status", "reason", "occasion", "what"),
    [
        ("finished", "finished", "finish", "finished"),
        ("finished", "exit", "finish", "finished (the script ended)"),
        ("stopped", "stopped", "finish", "stopped on request"),
        ("stopped", "interrupted", "finish", "interrupted from the keyboard"),
        ("stopped", "signal", "failure", "ended by a signal"),
        ("failed", "failed", "failure", "failed"),
        ("finished", "early", "finish", "finished (early)"),
        ("failed", "oom", "failure", "failed (oom)"),
    ],
)
def test_every_end_has_words(status, reason, occasion, what):
    end = ended(story(), status, reason)

    assert (end.occasion, end.title) == (occasion, f"greyjacket: {what}")


# ------------------------------------------------------------ the state of the run


def test_what_is_left_follows_from_the_usual_pace():
    run = story()
    reported(run, record("start", max_steps=1000), *(step(n, sec_per_step=2.0) for n in range(1, 10)))
    reported(run, step(10, sec_per_step=500.0, train_loss=0.25, lr=1e-4))

    assert run.run_state.eta_s == 990 * 2.0
    assert run.run_state.as_text() == "running · step 10 of 1,000 (1%) · loss 0.25 · LR 0.0001 · ETA 33 m"


@pytest.mark.parametrize(("start", "first"), [({}, 0), ({"first_step": 0}, 1)], ids=["step 0", "its start"])
def test_a_loop_that_counts_from_zero_is_done_after_its_last_step(start, first):
    run = story()
    reported(
        run, record("start", max_steps=18, **start), *(step(n, sec_per_step=2.0) for n in range(first, 17))
    )

    assert run.run_state.eta_s == 2.0

    reported(run, step(17, sec_per_step=2.0))

    assert run.run_state.eta_s is None
    assert run.run_state.as_text() == "running · step 18 of 18 (100%)"


def test_what_is_not_known_is_not_said():
    assert story().run_state.as_text() == "running"
    run = story()
    reported(run, step(5))
    assert run.run_state.as_text() == "running · step 5"


@pytest.mark.parametrize(
    "odd", [{"global_step": "7"}, {"global_step": None}, {"train_loss": []}, {"lr": "x"}, {}]
)
def test_odd_records_do_no_harm(odd):
    run = story()
    reported(run, {"event": []}, {"event": {}})

    assert (
        reported(
            run, record("step", **odd), record("finding"), record("start", max_steps="many"), {"event": None}
        )
        != []
    )


# ------------------------------------------------------------ words


def test_a_text_is_redacted_before_it_is_cut():
    def redact(texts):
        about_run, what, lines, _ = texts
        return about_run, what, [line.replace("SECRET-SECRET", "***") for line in lines], {}

    run = story(redact=redact)
    reported(run, record("error", type="E", message="x" * 595 + " SECRET-SECRET"))
    message = ended(run, "failed", "failed")

    assert "SECR" not in message.lines[0]
    assert len(message.lines[0]) <= 600
