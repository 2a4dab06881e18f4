"""A run that watches itself: what is found is in its records, and agrees with what its history says."""

from __future__ import annotations

import math
import random
import time

import pytest

from tests.records import read_records
from tests.telemetry.logged import PATIENCE_S, make_logger, records_of
from toolkit.telemetry.diagnostics.confidence import confidence_of
from toolkit.telemetry.diagnostics.examiner import Examiner
from toolkit.telemetry.diagnostics.finding import finding_from
from toolkit.telemetry.logger.writing.mirror import Mirror
from toolkit.telemetry.runfolder.manifest import read_manifest


@pytest.fixture
def examined_when_flushed(monkeypatch):
    """Let no records be examined halfway through a loop, as they are where the loop takes half a second."""
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "interval_s", 3600.0)


def loss_at(step, dice):
    return 0.3 + 2.0 * math.exp(-step / 300) + 0.02 * dice.gauss(0.0, 1.0)


def train(log, steps, *, seed=0, broken=lambda step, loss: loss):
    dice = random.Random(seed)
    for step in steps:
        log.log_step(step, train_loss=broken(step, loss_at(step, dice)), lr=1e-3, grad_norm=1.0)


def spike_at(first, last, factor=6.0):
    return lambda step, loss: loss * factor if first <= step < last else loss


def last_words(records):
    """Return the newest finding of each id that the run wrote."""
    return {record["id"]: finding_from(record) for record in records if record["event"] == "finding"}


def words_of_history(records):
    examiner = Examiner()
    examiner.take(records)
    return {finding.id: finding for finding in examiner.findings()}


@pytest.mark.usefixtures("examined_when_flushed")
def test_a_spike_is_in_the_records_once_it_is_flushed(tmp_path):
    log = make_logger(tmp_path, log_every=1)
    train(log, range(200), broken=spike_at(150, 160))
    log.flush(PATIENCE_S)
    found = records_of(log, "finding")
    log.close()

    assert [(record["kind"], record["severity"]) for record in found] == [("spike", "warning")]
    assert found[0]["start_step"] == 150
    assert found[0]["noticed_step"] in (150, 151, 152)
    assert found[0]["message"].startswith("train_loss jumped from 1.5")
    assert found[0]["causes"]
    assert found[0]["advice"]
    assert found[0]["confidence"] == confidence_of(finding_from(found[0]))


def test_what_happens_between_two_records_is_found(tmp_path):
    """Gradients are accumulated over four steps and a record comes every ten: the explosion is at none of them."""
    log = make_logger(tmp_path, log_every=10)
    dice = random.Random(0)
    for step in range(1, 2_001):
        norm = {"grad_norm": 1e9 if step == 1_412 else dice.uniform(0.9, 1.1)} if step % 4 == 0 else {}
        reward = {"reward": math.nan if step == 1_703 else 0.5}
        log.log_step(step, train_loss=loss_at(step, dice), **norm, **reward)
    log.flush(PATIENCE_S)
    found = {record["kind"]: record for record in records_of(log, "finding")}
    log.close()

    assert (found["exploding_grad"]["metric"], found["exploding_grad"]["start_step"]) == ("grad_norm", 1_420)
    assert found["exploding_grad"]["evidence"]["peak"] == 1e9
    assert (found["nan"]["metric"], found["nan"]["start_step"]) == ("reward", 1_710)


def test_what_was_written_live_is_what_history_says(tmp_path):
    log = make_logger(tmp_path, log_every=1)
    train(log, range(400), broken=spike_at(150, 160))
    log.flush(PATIENCE_S)
    train(log, range(400, 500), broken=lambda step, loss: math.nan if step >= 499 else loss)
    log.close()
    records = read_records(log.run_folder / "metrics.jsonl")

    assert records[-1]["event"] == "end", "the last records are examined before it"
    assert last_words(records) == words_of_history(records)
    assert {finding.kind for finding in last_words(records).values()} == {"spike", "nan"}


@pytest.mark.usefixtures("examined_when_flushed")
@pytest.mark.parametrize("more", [40, 0])
def test_an_open_finding_is_written_again_at_the_end_if_it_has_changed(tmp_path, more):
    log = make_logger(tmp_path, log_every=1)
    train(log, range(100), broken=lambda step, loss: math.nan if step >= 60 else loss)
    log.flush(PATIENCE_S)
    before = records_of(log, "finding")
    train(log, range(100, 100 + more), broken=lambda step, loss: math.nan)
    log.close()
    found = records_of(log, "finding")

    assert len(found) == len(before) + bool(more)
    assert {record["id"] for record in found} == {found[0]["id"]}
    assert (before[-1]["count"], found[-1]["count"]) == (40, 40 + more)


@pytest.mark.usefixtures("examined_when_flushed")
def test_a_resumed_run_keeps_its_findings_and_reports_nothing_twice(tmp_path):
    log = make_logger(tmp_path, log_every=1)
    train(log, range(200), broken=spike_at(150, 160))
    log.close()
    log = make_logger(tmp_path, log_every=1, resume=True)
    train(log, range(190, 400), seed=1)
    log.close()
    records = read_records(log.run_folder / "metrics.jsonl")

    # Other losses of the same steps are not the same training.
    found = [(record["session"], record["kind"]) for record in records if record["event"] == "finding"]
    assert found == [(1, "spike"), (2, "resume_mismatch")]
    assert last_words(records) == words_of_history(records)


def test_a_killed_session_s_finding_is_reported_by_the_next_one(tmp_path):
    log = make_logger(tmp_path, log_every=1, diagnostics=False)
    train(log, range(200), broken=spike_at(150, 160))
    log.close()
    log = make_logger(tmp_path, log_every=1, resume=True)
    train(log, range(200, 300), seed=1)
    log.close()
    found = records_of(log, "finding")

    assert [(record["kind"], record["session"], record["began_in_session"]) for record in found] == [
        ("spike", 2, 1)
    ]


def test_the_best_validation_loss_of_an_earlier_session_is_remembered(tmp_path):
    def with_validation(log, steps, val):
        for step in steps:
            log.log_step(step, train_loss=1.0 / (1 + step / 100), lr=1e-3)
            if step % 50 == 0:
                log.log_eval(step, val_loss=val(step))

    log = make_logger(tmp_path, log_every=1)
    with_validation(log, range(1, 501), lambda step: 2.0 - step / 500)
    log.close()
    log = make_logger(tmp_path, log_every=1, resume=True)
    with_validation(log, range(501, 1001), lambda step: 1.0 + (step - 500) / 500)
    log.close()
    found = records_of(log, "finding")

    assert {record["kind"] for record in found} == {"overfit"}
    assert found[0]["start_step"] == 500


def test_silence_and_severity_are_chosen_by_kind(tmp_path, capfd):
    log = make_logger(tmp_path, log_every=1, diagnostics={"spike": "info", "nan": False})
    train(log, range(200), broken=spike_at(150, 160))
    train(log, range(200, 220), broken=lambda step, loss: math.nan)
    log.close()
    found = records_of(log, "finding")

    assert {(record["kind"], record["severity"]) for record in found} == {("spike", "info")}
    assert "[telemetry] warning" not in capfd.readouterr().err


def test_the_manifest_counts_open_findings_and_keeps_what_was_silenced(tmp_path):
    log = make_logger(tmp_path, log_every=1, diagnostics={"plateau": "off"})
    train(log, range(100), broken=lambda step, loss: math.nan if step >= 60 else loss)
    log.close()
    manifest = read_manifest(log.run_folder)

    assert manifest.summary["findings_critical"] == 1
    assert "findings_warning" not in manifest.summary
    assert manifest.diagnostics == {"plateau": "off"}


def until_stopped(log, *, broken, seconds=100.0):
    dice = random.Random(0)
    deadline = time.monotonic() + seconds
    for step in range(1_000_000):
        log.log_step(step, train_loss=broken(step, loss_at(step, dice)), lr=1e-3)
        time.sleep(0.002)
        if log.should_stop:
            return step
        if time.monotonic() > deadline:
            return None
    return None


def test_a_critical_finding_stops_the_run_where_that_is_asked_for(tmp_path):
    log = make_logger(tmp_path, log_every=1, control=True, on_finding={"nan": "stop"})
    log.declare_action("stop")
    stopped = until_stopped(log, broken=lambda step, loss: math.nan if step >= 100 else loss)
    log.close()
    records = read_records(log.run_folder / "metrics.jsonl")
    asked = next(record for record in records if record["event"] == "finding")
    answer = next(record for record in records if record["event"] == "control_change")

    assert stopped is not None
    assert asked["asks_for"] == "stop"
    assert (answer["status"], answer["source"], answer["actions"]) == ("applied", "finding", ["stop"])
    assert asked["id"] in answer["id"]
    assert records[-1]["status"] == "stopped"


def test_an_action_that_the_script_cannot_do_is_refused_with_that_reason(tmp_path):
    log = make_logger(tmp_path, log_every=1, control=True, on_finding={"nan": "save"})
    train(log, range(100), broken=lambda step, loss: math.nan if step >= 60 else loss)
    log.close()
    answers = [r for r in read_records(log.run_folder / "metrics.jsonl") if r["event"] == "control_change"]

    assert [(answer["status"], answer["reason"]) for answer in answers] == [
        ("refused", "this run has no action save; declared: none")
    ]


def test_a_rule_of_ones_own_is_followed_live_and_kept_in_the_manifest(tmp_path, capfd):
    rule = {"name": "too high", "when": "train_loss > 5", "for": 3, "severity": "critical"}
    log = make_logger(tmp_path, log_every=1, diagnostics={"spike": False}, alerts=[rule])
    train(log, range(200), broken=spike_at(150, 160))
    log.close()
    found = last_words(read_records(log.run_folder / "metrics.jsonl"))

    (own,) = [finding for finding in found.values() if finding.kind == "rule:too high"]
    assert (own.severity, own.start_step, own.noticed_step, own.count) == ("critical", 150, 152, 10)
    assert read_manifest(log.run_folder).diagnostics["alerts"] == [rule]
    assert "[telemetry] critical: train_loss > 5 holds. Since step 150" in capfd.readouterr().err


def test_a_rule_with_a_mistake_is_said_and_left_out_and_the_run_goes_on(tmp_path, caplog):
    wrong, right = {"name": "a", "when": "los >"}, {"name": "b", "when": "train_loss > 0"}
    log = make_logger(tmp_path, log_every=1, strict=False, alerts=[wrong, right])
    train(log, range(20))
    log.close()

    said = (
        "alerts[0].when is 'los >': A name, a number or ( is missing (character 6); what is wrong is left out"
    )
    assert said in caplog.text
    assert [one["name"] for one in read_manifest(log.run_folder).diagnostics["alerts"]] == ["b"]
    assert len(records_of(log, "step")) == 20
