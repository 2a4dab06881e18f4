"""One remedy out of what the run has declared, and what came of the knobs that were turned."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.made_runs import BEGAN, SECONDS_A_STEP, finding, step_record, write_run
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE
from toolkit.telemetry.runs.findings.remedies import (
    effects_on,
    own_answer,
    remedy_for,
)
from toolkit.telemetry.runs.sources.local_store import LocalStore


def alert(kind="divergence", **more):
    return finding(kind, 50, remedies=CATALOGUE[kind].remedies, severity="critical", **more)


def knob(value=1.0, low=0.1, high=2.0, **more):
    return {"type": "float", "low": low, "high": high, "value": value, **more}


@pytest.mark.parametrize(
    ("declared", "label", "new"),
    [
        (knob(), "Halve lr_scale: 1 → 0.5", 0.5),
        (knob(0.15), "Lower lr_scale: 0.15 → 0.1", 0.1),
        (knob(None), "Halve lr_scale: 1 → 0.5", 0.5),
        (knob(1, low=None, high=None), "Halve lr_scale: 1 → 0.5", 0.5),
        (knob(8.0, high=2.0), "Lower lr_scale: 8 → 2", 2.0),
    ],
)
def test_a_knob_of_the_learning_rate_is_halved_within_its_bounds(declared, label, new):
    remedy = remedy_for(alert(), {"knobs": {"lr_scale": declared}})

    assert remedy.label == label
    assert remedy.request == {"knobs": {"lr_scale": new}}
    assert not remedy.stops


@pytest.mark.parametrize(
    "declared",
    [
        knob(0.1),
        knob(0.0),
        knob(-1.0),
        knob(math.nan, low=2.0),
        knob(choices=[1.0, 0.1]),
        {"type": "text", "value": "fast"},
        {"type": "bool", "value": True},
        7,
        {},
    ],
)
def test_a_knob_that_cannot_be_lowered_is_left_and_the_next_remedy_taken(declared):
    remedy = remedy_for(alert(), {"knobs": {"lr_scale": declared}, "actions": ["save", "save_and_stop"]})

    assert remedy.label == "Save and stop"
    assert remedy.request == {"actions": ("save_and_stop",)}
    assert remedy.stops
    assert remedy.saves


def test_the_first_remedy_that_the_run_has_is_taken():
    assert remedy_for(alert("nan"), {"actions": ["save", "stop"]}).label == "Stop"
    assert remedy_for(alert("nan"), {"actions": ["save"]}) is None
    assert remedy_for(alert("spike"), {"actions": ["save"]}).label == "Save now"
    assert remedy_for(alert("low_gpu_util"), {"actions": ["save", "stop"]}) is None
    for odd in ({}, {"actions": 7, "knobs": 7}, {"actions": "stop", "knobs": []}):
        assert remedy_for(alert(), odd) is None


# ---------------------------------------------------------------- whether it helped


def change(step, **more):
    return {
        "event": "control_change",
        "time": BEGAN + step * SECONDS_A_STEP + 0.1,
        "id": "x",
        "status": "applied",
        "global_step": step,
        "knobs/lr_scale/old": 1.0,
        "knobs/lr_scale/new": 0.5,
        **more,
    }


@pytest.fixture
def effects(tmp_path):
    """Write a run whose loss is 8 before step 60, and `after` from then on; return what is said of the changes."""

    def write(*changes, after=1.0, steps=100, of=None):
        records = [step_record(step, train_loss=8.0 if step <= 60 else after) for step in range(steps)]
        write_run(tmp_path, "r", records, extra=changes)
        store = LocalStore([tmp_path], cache_dir=None)
        store.refresh("r", wait_s=60.0)
        return effects_on(store, "r", of or alert(noticed_step=55))

    return write


@pytest.mark.parametrize(
    ("after", "verdict"), [(1.0, "better"), (9.0, "worse"), (7.9, "same"), (math.nan, "worse")]
)
def test_the_medians_before_and_after_a_change_say_whether_it_helped(effects, after, verdict):
    (effect,) = effects(change(60), after=after)

    assert effect.what == "lr_scale 1 → 0.5"
    assert (effect.step, effect.metric, effect.before) == (60, "train_loss", 8.0)
    assert effect.after == pytest.approx(after, nan_ok=True)
    assert effect.verdict == verdict


def test_a_few_records_are_too_early_to_say(effects):
    (effect,) = effects(change(60), steps=64)

    assert effect.records_after == 3
    assert effect.verdict == ""


@pytest.mark.parametrize(
    "record",
    [
        change(54),
        change(60, status="refused"),
        change(60, time="now"),
        {
            "event": "control_change",
            "time": BEGAN,
            "status": "applied",
            "setting": "log_every",
            "global_step": 60,
        },
        {
            "event": "control_change",
            "time": BEGAN,
            "status": "applied",
            "actions": ["save"],
            "global_step": 60,
        },
    ],
    ids=["before it was noticed", "refused", "without a time", "log_every", "an action"],
)
def test_other_changes_are_no_remedy(effects, record):
    assert effects(record) == []


def test_where_the_change_sets_the_metric_itself_the_loss_is_judged(effects):
    (effect,) = effects(change(60), of=alert("lr_problem", noticed_step=55, metric="lr"))

    assert effect.metric == "train_loss"


def test_what_a_finding_asked_of_its_own_run_is_found_by_its_id(tmp_path):
    asked = {"event": "control_change", "status": "applied", "actions": ["stop"], "source": "finding"}
    write_run(
        tmp_path,
        "r",
        extra=[
            {**asked, "id": "finding:nan:1-nan-a_b-5", "global_step": 7},
            {**asked, "id": "finding:nan:1-nan-other-5", "global_step": 8},
        ],
    )
    store = LocalStore([tmp_path], cache_dir=None)
    store.refresh("r", wait_s=60.0)

    assert own_answer(store, "r", replace(alert("nan"), id="1-nan-a/b-5"))["global_step"] == 7
    assert own_answer(store, "r", alert("nan")) is None
