import pytest

from toolkit.telemetry.runfolder.metrics import (
    INTERNAL,
    guess_primary_metric,
    is_evaluation,
    metric_direction,
)
from toolkit.telemetry.timing.names import DEVICE_TIME_PREFIX, LEDGER_PREFIX, PROFILING_PREFIX, TIME_PREFIX


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        *(
            ("train_loss", "min"),
            ("val_loss", "min"),
            ("LossG", "min"),
            ("eval/perplexity", "min"),
            ("FID", "min"),
        ),
        *(
            ("accuracy", "max"),
            ("reward", "max"),
            ("rewards/accuracies", "max"),
            ("rollout/ep_rew_mean", "max"),
        ),
        *(("samples_per_sec", "max"), ("gpu_util", "max"), ("clip_score", "max"), ("pass@1", "max")),
        *(("lr", None), ("epoch", None), ("reward_std", None), ("kl", None), ("grad_norm", None), ("", None)),
    ],
)
def test_the_name_says_which_direction_is_better(name, direction):
    assert metric_direction(name) == direction


@pytest.mark.parametrize(
    ("name", "event", "expected"),
    [
        *(
            ("val_loss", "step", True),
            ("eval/kl", "step", True),
            ("reward", "step", True),
            ("loss", "step", True),
        ),
        *(("lr", "step", False), ("samples_per_sec", "step", False), ("aux_loss", "step", False)),
        *(("kl", "eval", True), ("eval_runtime", "eval", False), ("eval_samples_per_second", "eval", False)),
        *(("train_loss", "epoch", True), ("batches", "epoch", False), ("ledger/validation", "step", False)),
    ],
)
def test_an_evaluation_is_recognised_by_its_record_or_its_name(name, event, expected):
    assert is_evaluation(name, event=event) is expected


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
