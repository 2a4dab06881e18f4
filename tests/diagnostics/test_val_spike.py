from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, evaluated, run_of
from tests.lengths import longer


def _run(vals, *, each=10, losses=None):
    losses = losses if losses is not None else curve(1, records=each * len(vals), noise=0.03)
    return evaluated(run_of(losses), vals, each=each)


def _vals(seed=1, *, records=20, noise=0.02):
    return curve(seed, records=records, noise=noise, first=2.0, last=1.0)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("at", [5, 10, 18])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_validation_loss_that_jumps_and_comes_back_is_one_resolved_spike(noise, at, length, seed):
    vals = _vals(seed, records=24, noise=noise)
    vals[at : at + length] = [3.0 * val for val in vals[at : at + length]]

    (finding,) = detect(_run(vals), "val_spike")

    assert (finding.severity, finding.state) == ("warning", "resolved")
    assert (finding.start_step, finding.noticed_step) == (10 * (at + 1), 10 * (at + 1))
    assert (finding.end_step, finding.resolved_step) == (10 * (at + length), 10 * (at + length + 1))
    assert finding.count == length
    assert finding.evidence["peak"] == max(vals[at : at + length])


def test_the_last_evaluation_may_be_one():
    vals = _vals()
    vals[-1] *= 4.0

    (finding,) = detect(_run(vals), "val_spike")

    assert finding.is_open


def _jumping(seed):
    dice = random.Random(seed)
    return [math.exp(dice.gauss(0.0, 0.5)) for _ in range(40)]


@pytest.mark.parametrize(
    "vals",
    [
        *(_vals(seed, records=40, noise=0.1) for seed in range(longer(2, 20))),
        *map(_jumping, range(longer(2, 10))),
        [*_vals()[:10], math.nan, *_vals()[11:]],
        [0.0] * 5 + _vals(),
    ],
)
def test_noise_nan_and_zeros_are_no_spikes(vals):
    assert detect(_run(vals), "val_spike") == []


def test_five_evaluations_need_a_larger_jump():
    assert detect(_run([2.0, 1.8, 3.2, 1.4, 1.3]), "val_spike") == []
    assert len(detect(_run([2.0, 1.8, 6.5, 1.4, 1.3]), "val_spike")) == 1


def test_a_jump_that_the_training_loss_makes_too_is_the_trainings():
    vals = _vals()
    vals[10] *= 4.0
    losses = curve(1, records=200, noise=0.03)
    losses[104:112] = [4.0 * loss for loss in losses[104:112]]

    assert detect(_run(vals, losses=losses), "val_spike") == []


def test_a_level_that_stays_is_closed_and_is_no_second_spike():
    vals = [*_vals(), *[4.0] * 20]

    (finding,) = detect(_run(vals), "val_spike")

    assert finding.state == "resolved"
    assert "was back" not in finding.message


def test_evaluations_without_any_training_loss_are_judged_alike():
    vals = _vals()
    vals[10] *= 4.0
    records = [record for record in _run(vals) if record["event"] == "eval"]

    assert len(detect(records, "val_spike")) == 1


@pytest.mark.parametrize("each", [5, 10])
def test_a_run_that_diverged_at_the_start_has_no_validation_spike(each):
    losses = [0.23, *curve(1, records=59, first=1.1, last=0.9, noise=0.15)]

    assert detect(_run([0.28, *[0.95] * 11], each=each, losses=losses), "val_spike") == []


def test_an_early_jump_counts_only_if_it_comes_back():
    vals = _vals(records=12, noise=0.0)
    stays = [vals[0], *[5.0 * val for val in vals[1:]]]
    back = [vals[0], 5.0 * vals[1], *vals[2:]]

    (finding,) = detect(_run(back), "val_spike")

    assert (finding.start_step, finding.noticed_step, finding.state) == (20, 30, "resolved")
    assert detect(_run(stays), "val_spike") == []


def test_a_small_jump_clear_of_the_noise_counts_once_it_is_back():
    vals = [1.0 + 0.01 * (number % 2) for number in range(24)]
    vals[12] *= 1.35

    (finding,) = detect(_run(vals), "val_spike")

    assert (finding.start_step, finding.noticed_step) == (130, 140)
    assert finding.evidence["ratio"] < 1.5
