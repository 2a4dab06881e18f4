"""Alerts: every state of a finding, what can be said about it, the one button against it, and whether that helped."""

from __future__ import annotations

import random
import time

import pytest

from dashboard import session
from tests.dashboard.troubled_runs import steps, with_findings
from tests.dashboard.views.pages import open_page, questions
from tests.made_runs import append, finding_record, step_record, write_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, OF_RANKS
from toolkit.telemetry.diagnostics.confidence import CLEAR
from toolkit.telemetry.diagnostics.confidence_table import STRENGTHS
from toolkit.telemetry.runfolder.control import read_request
from toolkit.telemetry.runfolder.labels import Labels, read_labels
from toolkit.telemetry.runfolder.layout import CONTROL
from toolkit.telemetry.runs.findings.alerts import alerts_of

TAKES = {
    "actions": ["save", "stop", "save_and_stop"],
    "knobs": {"lr_scale": {"type": "float", "low": 0.1, "high": 2.0, "value": 1.0}},
}


@pytest.fixture
def live(logs, training):
    """Write a live run in trouble, which takes requests."""

    def write(trouble, *, repeats=0, **control):
        began = time.time() - 201
        records = [
            {**record, "time": began + 0.5 * max(0, record.get("global_step", 0)), "repeats": repeats}
            for record in with_findings(steps(trouble))
        ]
        return write_run(
            logs,
            "r",
            records,
            sessions=(range(400),),
            status="running",
            pid=training,
            control=control or TAKES,
        )

    return write


def buttons(tab, start=""):
    return [item.label for item in tab.main.button if item.label.startswith(start)]


def toasts(tab):
    return [item.value for item in tab.toast]


# ---------------------------------------------------------------- none


def test_a_healthy_run_says_what_is_watched(logs):
    write_run(logs, "r", steps())

    tab = open_page("alerts", "r")

    assert "**No alerts.**" in tab.said()
    for name, kind in CATALOGUE.items():
        assert (kind.title in tab.said()) == (name not in OF_RANKS)
    assert "Errors" in tab.said()


# ---------------------------------------------------------------- open and over


def test_what_a_run_kept_of_the_step_of_a_finding_is_next_to_its_chart(logs):
    dice = random.Random(1)
    with TelemetryLogger("r", logs, quiet=True, system=False, log_every=1) as log:
        for step in range(1, 301):
            is_bad = 200 <= step < 206
            log.batch([f"{step}-a", f"{step}-b"], losses=[1.0, 17.0 if is_bad else 1.0])
            log.log_step(step, train_loss=9.0 if is_bad else dice.uniform(0.9, 1.1))
        for step in (100, 200):
            (log.run_folder / f"{step}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
            log.log_sample(step, log.run_folder / f"{step}.png", prompt="a fox")
    (log.run_folder / "output.log").write_text("epoch 1\nbatch 200 is odd\n")

    tab = open_page("alerts", "r")

    assert "At step 200: train_loss 9" in tab.said().replace("**", "")
    batches = [table.values.tolist() for table in tab.tables() if "Sample of its batch" in table]
    assert [["200-b", 17.0], ["200-a", 1.0]] in batches, "the most unusual one first"
    assert "batch 200 is odd" in "\n".join(item.value for item in tab.code)
    strip = tab.samples()
    assert [item[0] for row in strip["rows"] for cell in row["cells"] for item in cell] == [200]


def test_an_open_finding_is_explained_with_its_place_causes_settings_and_advice(logs):
    records = with_findings(steps("divergence"))
    records[0] |= {"learning_rate": 1.0, "config": {"train": {"warmup": 25, "lr": 1.0}}}
    write_run(logs, "r", records, control=TAKES)

    tab = open_page("alerts", "r")
    words = tab.said()

    assert "Critical" in tab.badges()
    assert "Divergence" in tab.headings()
    assert "since step 200, detected at 20" in words
    share, right, of, _ = STRENGTHS[CLEAR]
    assert f"{100 * share:.0f} % sure" in words
    assert f"{right} of {of} findings with evidence as strong as this were right" in words
    for part in (*CATALOGUE["divergence"].causes, "Clip the gradient norm at 1.0"):
        assert part in words
    assert "learning rate 1 · warm-up 25 steps · no gradient clipping in the configuration" in words
    assert buttons(tab, "Halve") == [], "a run that has ended cannot be asked"
    (chart, *_) = tab.curve_charts()
    (band,) = chart["bands"]
    assert (band["start"], band["end"]) == (200, 399)
    assert chart["window"][0] < 200
    assert chart["axis"] == "step"
    assert "start" in [mark["text"] for mark in chart["marks"]]
    assert [level["text"].startswith("level before") for level in chart["levels"]] == [True]


def test_one_that_is_over_is_one_card_with_its_steps_and_without_a_button(live):
    live("spike", repeats=2)

    tab = open_page("alerts", "r")
    words = tab.said()

    assert tab.headings().count("Loss spike") == 1, "however many records report it"
    assert "resolved" in tab.badges()
    for part in ("No alert is open.", "Resolved: Loss spike", "came back 2 times"):
        assert part in words
    for part in ("steps 200 to 202", ", resolved at 2", "3 records"):
        assert part in words
    assert buttons(tab, "Halve") == []

    events = open_page("overview", "r").said()

    assert events.count("Loss spike resolved at step") == 1
    assert "Finding at step" not in events


def test_no_alert_is_open_only_in_what_was_examined(live, monkeypatch):
    live("spike")
    monkeypatch.setattr(session, "is_partly", lambda how, run: how == "examined")

    assert "No alert is open in what has been examined." in open_page("alerts", "r").said()


def test_a_slow_rank_is_named_and_not_drawn_with_the_curve_of_another(logs):
    run = write_run(logs, "r", ranks={1: {"sec_per_step": lambda _: 0.1}})
    message = "Rank 1 is slower than the others in loading its data since step 2: 0.3 s a step"
    append(run, [finding_record("straggler", 2, message=message, evidence={"rank": 1.0, "ratio": 2.2})])

    tab = open_page("alerts", "r")

    assert "Rank 1 is slower than the others in loading its data" in tab.said()
    assert "See *Time and machine*" in tab.said()
    assert "not calibrated" in tab.said(), "no labelled run has a slow rank"
    assert not tab.charts()


# ---------------------------------------------------------------- equal ones


def slower(step, *, over=True, lost=31.0):
    return finding_record(
        "throughput_drop",
        step,
        metric="samples_per_sec",
        message=f"Slower since step {step}.",
        time=1.7e9 + step,
        state="resolved" if over else "open",
        evidence={"lost_pct": lost, "usual": 99.0, "now": 68.0},
    )


def test_equal_alerts_are_one_card_with_a_list_of_occurrences(logs):
    folder = write_run(logs, "r", extra=[slower(step, lost=step / 10) for step in range(100, 300, 10)])

    tab = open_page("alerts", "r")

    assert tab.headings().count("Slower than before") == 1
    assert "20 times" in tab.badges()
    assert "Resolved: Slower than before (20)" in tab.said()
    assert "Slower since step 290." in tab.said(), "the newest is shown first"
    assert "29 % less" in tab.said()
    choice = tab.selectbox(key="_which r Slower than before")
    assert choice.options[0].startswith("✓ step 290 · −29")  # noqa: RUF001
    assert len(choice.options) == 20
    [drawn] = next(iter(tab.figures().values()))["data"]
    assert drawn["base"][:2] == [290, 280], "all on one axis, where a click chooses one"

    choice.set_value("1-throughput_drop-samples_per_sec-270").run()

    assert "Slower since step 270." in tab.said()
    assert "Slower since step 290." not in tab.said()

    tab.button_called("Mark all 20 as seen").click().run()

    assert len(read_labels(folder).acknowledged) == 20
    assert "All alerts have been seen or muted." in tab.said()


def test_a_kind_with_an_open_occurrence_is_not_among_the_resolved(logs):
    write_run(logs, "r", extra=[slower(100), slower(200, over=False), slower(300)])

    tab = open_page("alerts", "r")

    assert "Resolved:" not in tab.said()
    assert "3 times, 1 open" in tab.badges()
    assert "Slower since step 200." in tab.said(), "the open one is shown first"


# ---------------------------------------------------------------- a run that no one watched


# ---------------------------------------------------------------- reported by others


@pytest.fixture
def alarmed(logs):
    return write_run(
        logs,
        "r",
        extra=[
            {
                "event": "finding",
                "id": "f1",
                "time": 1.7e9,
                "kind": "loss spike",
                "severity": "critical",
                "message": "The loss jumped from 1 to 9.",
                "metric": "train_loss",
                "start_step": 50,
                "causes": ["a bad batch", "too high a learning rate"],
                "advice": ["clip gradients"],
                "evidence": {"z-score": 12.345678},
            },
            {
                "event": "finding",
                "id": "f2",
                "time": 1.7e9,
                "kind": "slow",
                "severity": "info",
                "message": "Slow.",
            },
            {
                "event": "error",
                "time": 1.7e9,
                "type": "ValueError",
                "message": "no file",
                "traceback": "Line 1\nLine 2",
            },
            {"event": "lost", "time": 1.7e9, "records": 5, "reason": "disk full"},
        ],
    )


def test_findings_errors_and_losses_are_listed_with_evidence_and_advice(alarmed):
    tab = open_page("alerts", "r")
    words = tab.said()

    assert {"Critical", "Warning", "Info"} <= set(tab.badges())
    for part in (
        "The loss jumped from 1 to 9.",
        "a bad batch",
        "clip gradients",
        "z-score 12.35",
        "no file",
    ):
        assert part in words
    assert "5 records were lost: disk full" in words
    assert any("Line 1\nLine 2" in code.value for code in tab.code)


# ---------------------------------------------------------------- seen


def test_an_alert_that_was_seen_is_remembered_and_folded_away(alarmed):
    tab = open_page("alerts", "r")
    seen = [item for item in tab.button if item.label == "Mark as seen" and "loss spike" in item.key]

    seen[0].click().run()

    (kept,) = read_labels(alarmed).acknowledged
    assert kept.startswith("f1:")
    assert "The loss jumped" not in tab.said()

    (toggle,) = [item for item in tab.main.toggle if item.label == "Show 1 seen or muted alert"]
    toggle.set_value(True).run()

    assert "The loss jumped" in tab.said()
    assert "seen" in tab.badges()


# ---------------------------------------------------------------- muted


def test_a_muted_kind_is_folded_away_listed_not_marked_in_charts_and_can_be_unmuted(logs):
    folder = write_run(logs, "r", with_findings(steps("divergence")))
    (chart, *_) = open_page("overview", "r").curve_charts()
    marks = [mark["text"] for mark in chart["marks"]]
    assert marks == ["Divergence"], "one mark, however many records report it"
    tab = open_page("alerts", "r")

    tab.button_called("Mute “Divergence” for this run").click().run()

    assert read_labels(folder).muted == ("divergence",)
    assert "Divergence" not in tab.headings()
    assert "All alerts have been seen or muted." in tab.said()
    overview = open_page("overview", "r")
    assert "1 critical" not in overview.badges()
    assert not overview.curve_charts()[0].get("marks")
    assert [overview.announced()[name] for name in ("count", "say", "about")] == [0, "", ""]

    tab.button_called("Unmute “Divergence”").click().run()

    assert read_labels(folder).muted == ()
    assert "Divergence" in tab.headings()


# ---------------------------------------------------------------- the button against it


def test_the_remedy_writes_the_request_and_shows_pending_then_the_answer(live):
    folder = live("divergence")
    tab = open_page("alerts", "r")

    remedy = tab.main.button(key="_remedy r 1-spike-train_loss-200")
    assert remedy.label.replace("\\", "") == "Halve lr_scale: 1 → 0.5"
    remedy.click().run()

    request = read_request(folder)
    assert dict(request.knobs) == {"lr_scale": 0.5}
    assert "Halve lr_scale: 1 → 0.5: pending, sent" in "".join(
        text.value for text in tab.main.markdown
    ).replace("\\", "")
    assert tab.main.button(key="_remedy r 1-spike-train_loss-200").disabled, "one at a time"

    append(
        folder,
        [
            {
                "event": "control_change",
                "time": time.time(),
                "id": request.id,
                "status": "applied",
                "global_step": 399,
                "knobs/lr_scale/old": 1.0,
                "knobs/lr_scale/new": 0.5,
            }
        ],
    )
    tab.run()

    assert "Halve lr_scale: 1 → 0.5: applied at step 399" in tab.said()
    assert "pending" not in tab.said()
    assert "lr_scale 1 → 0.5 at step 399: too early to say: 0 of 20 records." in tab.said()

    later = time.time() + 1
    append(folder, [{**step_record(400 + n, train_loss=0.9), "time": later + n} for n in range(25)])
    tab.run()

    assert "0.9 after" in tab.said()
    assert "it helped" in tab.said()


def test_stopping_asks_once_more_in_the_card(live):
    folder = live("nan", actions=["stop"])
    tab = open_page("alerts", "r")

    assert questions(tab) == ["Stop", "Stop"], "in the card, and in the side bar"
    assert "The run stops after the current step **without saving**." in tab.said()
    assert not (folder / CONTROL).exists(), "a question is no request"

    tab.main.button(key="_yes_stop remedy r 1-nan-train_loss-200").click().run()

    assert read_request(folder).actions == ("stop",)
    assert "Stop: pending" in tab.said()


def test_a_run_that_declares_nothing_fitting_has_no_button(live):
    live("divergence", actions=["sample"], knobs={"depth": {"type": "int", "value": 3}})

    tab = open_page("alerts", "r")

    assert "Divergence" in tab.headings()
    assert "since step 200" in tab.said()
    assert [label for label in buttons(tab) if "Halve" in label or "top" in label] == []


def test_what_the_run_asked_of_itself_is_shown(logs):
    asked = {"event": "control_change", "time": 1.7e9, "status": "applied", "actions": ["stop"]}
    own = {**asked, "id": "finding:nan:1-nan-train_loss-200", "source": "finding", "global_step": 203}
    write_run(logs, "r", with_findings(steps("nan")), extra=[own], status="stopped")

    assert "requested by the run itself: stop applied at step 203" in open_page("alerts", "r").said()


# ---------------------------------------------------------------- on the other pages


def test_the_worst_open_alert_is_on_every_page_with_a_link_to_the_others(alarmed):
    tab = open_page("metrics", "r")

    assert "2 critical" in tab.badges(), "a finding and an error"
    assert "no file" in tab.said(), "what has no step is news of the whole run"
    assert any("lost 5 records" in warning.value and "disk full" in warning.value for warning in tab.warning)
    assert '<a class="telemetry-alert" href="/alerts?run=r" title="What to try">' in tab.html()


def test_what_is_over_or_seen_is_no_longer_on_every_page(logs):
    write_run(logs, "over", with_findings(steps("spike")))
    write_run(logs, "r", with_findings(steps("divergence")))

    assert not tab_warns(open_page("overview", "over"))
    assert tab_warns(open_page("overview", "r"))

    store = session.store()
    store.label("r", Labels(acknowledged=tuple(alert.acknowledged_key for alert in alerts_of(store, "r"))))

    assert not tab_warns(open_page("overview", "r"))


def tab_warns(tab):
    return bool([badge for badge in tab.badges() if "critical" in badge or "warning" in badge])


def test_a_critical_finding_of_a_live_run_is_announced_once(live):
    folder = live("divergence")
    tab = open_page("overview", "r")

    assert len(toasts(tab)) == 1
    assert "Divergence" in toasts(tab)[0]

    tab.run()
    tab.go_to("alerts")

    assert toasts(tab) == []

    late = with_findings([{**record, "session": 2} for record in steps("nan")])
    append(folder, [{**record, "id": "2-nan"} for record in late if record["event"] == "finding"][:1])
    tab.run()

    assert len(toasts(tab)) == 1
    assert "Not a number" in toasts(tab)[0]


def test_an_old_run_and_a_warning_say_nothing_aloud(logs, live):
    live("spike")
    write_run(logs, "old", with_findings(steps("divergence")))

    assert toasts(open_page("overview", "old")) == []
    assert toasts(open_page("overview", "r")) == []


# ---------------------------------------------------------------- errors and hangs


def test_an_error_and_a_hang_show_their_stacks_as_plain_text(logs):
    error = {
        "event": "error",
        "seq": 900,
        "session": 1,
        "time": 1_700_000_500.0,
        "global_step": 399,
        "id": "1-error-abc",
        "message": "ValueError: bad batch",
        "count": 7,
        "stack": ["train.py:9 in <module>", "**bold**.py:1 in f"],
        "output": ["<b>the last words</b>"],
    }
    hang = finding_record(
        "hang", 399, time=1_700_000_600.0, metric="global_step", message="No step for 301 s."
    )
    hang["stacks"] = [{"threads": ["MainThread"], "stack": ["dist.py:3 in all_reduce"]}]
    write_run(logs, "r", [*steps(), error, hang])

    tab = open_page("alerts", "r")

    assert "7 times" in tab.said()
    assert [block.value for block in tab.main.code] == [
        "train.py:9 in <module>\n**bold**.py:1 in f",
        "<b>the last words</b>",
        "dist.py:3 in all_reduce",
    ]
    assert tab.curve_charts() == [], "an error is no point of a curve"


# ---------------------------------------------------------------- rules of one's own


def test_a_rule_is_tried_kept_followed_and_removed(logs):
    write_run(logs, "r", steps())

    tab = open_page("alerts", "r")
    tab.text_input("_rule_when").set_value("train_los > 1").run()
    assert "did you mean train_loss?" in tab.said()
    tab.text_input("_rule_when").set_value("train_loss >").run()
    assert "is missing (character 13)" in tab.said()
    tab.text_input("_rule_when").set_value("train_loss > 0").run()
    assert "Would have fired once in this run, first at step 0." in tab.said()
    tab.text_input("_rule_name").set_value("above zero").run()
    tab.button_called("Keep for the project").click().run()

    assert "above zero" in tab.headings()
    tab = open_page("alerts", "r")
    assert "above zero" in tab.headings()
    tab.button_called("Remove").click().run()
    assert "above zero" not in tab.headings()
