"""Every reader of curves takes the same numbers from a record."""

import math

import pytest

from toolkit.telemetry.runfolder.codec import decode, encode
from toolkit.telemetry.runfolder.metrics import (
    INTERNAL,
    Position,
    guess_primary_metric,
    is_evaluation,
    metric_direction,
    metrics_of,
    position_of,
)
from toolkit.telemetry.timing.names import DEVICE_TIME_PREFIX, LEDGER_PREFIX, PROFILING_PREFIX, TIME_PREFIX


def test_numbers_of_a_step_are_metrics_in_the_order_of_its_fields():
    record = {
        "event": "step",
        "time": 5.0,
        "elapsed": 1.0,
        "seq": 7,
        "session": 2,
        "rank": 3,
        "global_step": 40,
        "epoch": 0.5,
        "nan_inf_detected": False,
        "loss_jump": True,
        "train_loss": 0.25,
        "note": "text",
        "nested": {"a": 1.0},
        "flag": True,
        "tokens": 2**53 + 1,
        "nothing": None,
    }

    assert list(metrics_of(record)) == [("train_loss", 0.25), ("flag", 1.0), ("tokens", float(2**53 + 1))]
    assert position_of(record) == Position(5.0, 1.0, 40.0, 0.5, 2)


def test_non_finite_numbers_come_back_from_their_line():
    record = decode(encode({"event": "eval", "a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}))
    found = dict(metrics_of(record))

    assert list(found) == ["a", "b", "c", "d"]
    assert math.isnan(found["a"])
    assert (found["b"], found["c"], found["d"]) == (math.inf, -math.inf, 1.0)


def test_a_metric_of_an_epoch_record_is_another_curve():
    assert list(metrics_of({"event": "epoch", "epoch": 3, "loss": 2.0})) == [("epoch/loss", 2.0)]


@pytest.mark.parametrize("event", ["start", "end", "span", "anything", "", None, 7, ["step"]])
def test_an_event_has_no_metrics(event):
    assert list(metrics_of({"event": event, "loss": 1.0})) == []


@pytest.mark.parametrize(
    ("session", "taken"),
    [(3, 3), (True, 1), ("3", 0), (None, 0), (-5, 0), (1e300, 2**31 - 1), (math.nan, 0), (math.inf, 0)],
)
def test_a_session_is_a_number_from_zero_on(session, taken):
    position = position_of({"event": "step", "session": session, "time": "noon", "elapsed": 10**400})

    assert position.session == taken
    assert all(math.isnan(value) for value in position[:4])


# ---------------------------------------------------------------- what a name says


DIRECTIONS = {
    "min": "train_loss val_loss LossG eval/perplexity FID",
    "max": "accuracy reward rewards/accuracies rollout/ep_rew_mean samples_per_sec gpu_util clip_score pass@1",
    None: "lr epoch reward_std kl grad_norm",
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_name_says_which_direction_is_better(direction):
    names = DIRECTIONS[direction].split()

    assert {name: metric_direction(name) for name in names} == dict.fromkeys(names, direction)
    assert metric_direction("") is None


@pytest.mark.parametrize(
    ("event", "evaluations", "others"),
    [
        ("step", "val_loss eval/kl reward loss", "lr samples_per_sec aux_loss ledger/validation"),
        ("eval", "kl", "eval_runtime eval_samples_per_second"),
        ("epoch", "train_loss", "batches"),
    ],
)
def test_an_evaluation_is_recognised_by_its_record_or_its_name(event, evaluations, others):
    assert all(is_evaluation(name, event=event) for name in evaluations.split())
    assert not any(is_evaluation(name, event=event) for name in others.split())


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([["train_loss", "val_loss"], ["train_loss", "val_loss"], ["train_loss"]], "val_loss"),
        # One run of three has it.
        ([["train_loss", "val_loss"], ["train_loss"], ["train_loss"]], "train_loss"),
        ([["train_loss", "rewards/format", "reward"]], "reward"),
        ([["train_loss", "eval/accuracy"], [], []], "eval/accuracy"),
        ([["eval/kl"]], None),
        ([["a_loss"], ["b_loss"], ["b_loss"], ["c_loss"], ["d_loss"]], "b_loss"),
        ([], None),
    ],
)
def test_the_primary_metric_is_one_that_most_runs_share(runs, expected):
    assert guess_primary_metric(runs) == expected


def test_what_telemetry_measures_itself_is_no_result():
    prefixes = {LEDGER_PREFIX, TIME_PREFIX, DEVICE_TIME_PREFIX}

    assert set(INTERNAL) == prefixes
    assert not any(
        is_evaluation(f"{prefix}eval_loss", event="eval") for prefix in (*prefixes, PROFILING_PREFIX)
    )
