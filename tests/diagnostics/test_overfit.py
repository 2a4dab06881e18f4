from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, evaluated, run_of
from tests.lengths import longer

BOWL = [2.0, 1.6, 1.3, 1.15, 1.1, 1.18, 1.3, 1.45, 1.6, 1.75, 1.9, 2.05]
"""A validation loss that is best at the fifth evaluation."""


def _run(vals, *, each=20, losses=None, noise=0.03):
    losses = losses if losses is not None else curve(1, records=each * len(vals), noise=noise, last=0.05)
    return evaluated(run_of(losses), vals, each=each)


def _evaluations(vals):
    return [{"event": "eval", "global_step": number, "val_loss": val} for number, val in enumerate(vals, 1)]


def _noisy(vals, noise, seed):
    dice = random.Random(seed)
    return [val * math.exp(dice.gauss(0.0, noise)) for val in vals]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("seed", range(longer(2, 4)))
def test_a_validation_loss_that_rises_from_its_best_is_reported_with_the_best_step(noise, seed):
    vals = _noisy(BOWL, noise, seed)

    (finding,) = detect(_run(vals), "overfit")

    best = vals.index(min(vals))
    assert (finding.severity, finding.state) == ("warning", "open")
    assert finding.start_step == 20 * (best + 1)
    assert 20 * (best + 4) <= finding.noticed_step <= 20 * (best + 7)
    assert finding.evidence["best_step"] == finding.start_step
    assert finding.evidence["best"] == min(vals)
    assert f"step {finding.start_step}" in finding.advice[0]


def test_five_evaluations_are_enough_where_they_climb_steadily():
    (finding,) = detect(_run([1.0, 1.2, 1.4, 1.6, 1.8]), "overfit")

    assert (finding.start_step, finding.noticed_step) == (20, 100)
    assert "has only risen since step 20" in finding.message


@pytest.mark.parametrize("vals", [[1.0], [1.0, 3.0], [1.0, 1.5, 2.0], [1.0, 1.2, 1.4, 1.6]])
def test_fewer_evaluations_say_nothing(vals):
    assert detect(_run(vals), "overfit") == []


@pytest.mark.parametrize("seed", range(longer(2, 20)))
def test_a_validation_loss_that_falls_with_noise_is_not_reported(seed):
    vals = _noisy(curve(seed, records=30, noise=0.0), 0.05, seed)

    assert detect(_run(vals), "overfit") == []


def test_how_often_a_validation_loss_that_only_wobbles_is_misjudged_grows_no_further():
    misjudged = {}
    for noise, evaluations in ((0.01, 60), (0.03, 15), (0.1, 15), (0.1, 60)):
        runs = [
            detect(_evaluations(_noisy([1.0] * evaluations, noise, seed)), "overfit") for seed in range(60)
        ]
        misjudged[noise, evaluations] = sum(bool(found) for found in runs)

    # The best of many is low by luck, and not all of that luck is seen through: these are counts of 60, as measured.
    assert misjudged[0.01, 60] == 0
    assert misjudged[0.03, 15] <= 3
    assert misjudged[0.1, 15] <= 7
    assert misjudged[0.1, 60] <= 20


def test_a_rise_of_a_few_percent_is_not_reported():
    assert detect(_run([1.2, 1.0, *[1.0 + 0.006 * place for place in range(1, 12)]]), "overfit") == []


def test_a_training_loss_that_rises_too_is_another_trouble():
    losses = [*curve(1, records=120, noise=0.02), *[0.5 * 1.02**place for place in range(120)]]

    assert detect(_run(BOWL, losses=losses), "overfit") == []


def test_a_run_without_training_losses_is_judged_by_its_evaluations():
    records = [record for record in _run(BOWL) if record["event"] == "eval"]

    assert len(detect(records, "overfit")) == 1


def test_a_validation_loss_that_is_no_number_is_passed_over():
    vals = [*BOWL[:6], math.nan, *BOWL[6:], math.nan]

    (finding,) = detect(_run(vals), "overfit")

    assert finding.start_step == 100
    assert finding.evidence["now"] == BOWL[-1]


def test_a_new_best_resolves_it_as_grokking_does():
    (finding,) = detect(_run([*BOWL, 1.2, 0.6, 0.2, 0.1]), "overfit")

    assert finding.state == "resolved"
    assert finding.resolved_step == 280
    assert finding.start_step == 100


def test_it_is_over_when_the_middle_of_the_last_ones_is_back_at_the_best():
    (finding,) = detect(_run([*BOWL[:10], *[1.11] * 8]), "overfit")

    assert finding.state == "resolved"


def test_a_resumed_session_keeps_the_best():
    records = _run(BOWL)
    records.insert(130, {"event": "start", "session": 2})

    (finding,) = detect(records, "overfit")

    assert finding.start_step == 100


def test_a_validation_loss_below_zero_that_rises_is_reported():
    (finding,) = detect(_run([val - 10.0 for val in [4.0, 2.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), "overfit")

    assert finding.start_step == 60


@pytest.mark.parametrize("records_between", [5, 20])
def test_a_run_that_diverged_at_the_start_does_not_overfit(records_between):
    vals = [0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0]
    losses = [0.23, *curve(1, records=records_between * len(vals) - 1, first=1.1, last=0.9, noise=0.15)]
    before = {"event": "eval", "global_step": 0, "val_loss": 0.28}

    found = detect([before, *_run(vals, each=records_between, losses=losses)], "overfit", "divergence")

    assert [finding.kind for finding in found] == ["divergence"]


def test_a_jump_that_comes_back_is_no_evidence():
    vals = [2.0, 1.6, 1.4, 1.3, 1.25, 1.27, 1.26, 1.29, 1.28, 4.0, 4.2, 4.1, 1.28, 1.27, 1.26]

    assert detect(_run(vals), "overfit") == []
    assert len(detect(_run([*vals[:9], 2.0, 2.1, 2.0, 2.2, 2.1, 2.2, 2.3, 2.4, 2.5]), "overfit")) == 1, (
        "it stays"
    )
