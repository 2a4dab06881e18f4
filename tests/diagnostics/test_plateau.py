from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, detect_one_by_one, run_of
from tests.lengths import longer


def _flat_after(first, *, records, noise=0.05, seed=0):
    dice = random.Random(seed)
    return [
        (1.0 + 2.0 * math.exp(-8.0 * place / first)) * math.exp(dice.gauss(0.0, noise))
        for place in range(records)
    ]


@pytest.mark.parametrize("noise", [0.01, 0.05])
@pytest.mark.parametrize("seed", range(longer(2, 4)))
def test_a_flat_loss_for_most_of_a_long_run_is_a_warning(noise, seed):
    (finding,) = detect(run_of(_flat_after(100, records=1500, noise=noise, seed=seed)), "plateau")

    assert (finding.severity, finding.state) == ("warning", "open")
    assert finding.start_step < finding.noticed_step < 1500
    assert finding.evidence["level"] == pytest.approx(1.0, rel=0.05)


def test_a_plateau_of_a_short_run_is_an_info_and_becomes_a_warning_later():
    losses = [loss * 1.001 for loss in _flat_after(20, records=1100, noise=0.02, seed=1)]

    (early,) = detect(run_of(losses[:300]), "plateau")
    (late,) = detect(run_of(losses), "plateau")
    _, words = detect_one_by_one(run_of(losses))

    assert early.severity == "info"
    assert (late.id, late.severity) == (early.id, "warning")
    assert words[late.id].severity == "warning"


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("records", [80, 300, 1500])
@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_a_loss_that_falls_as_losses_do_is_not_reported(noise, records, seed):
    assert detect(run_of(curve(seed, records=records, noise=noise)), "plateau") == []


@pytest.mark.parametrize("seed", (0, 1))
def test_a_slow_steady_gain_is_no_warning_during_or_after_the_run(seed):
    dice = random.Random(seed)
    losses = [2.0 * (1.0 - 0.1 * place / 1000) * math.exp(dice.gauss(0.0, 0.05)) for place in range(1000)]

    examiner, words = detect_one_by_one(run_of(losses))

    assert {word.severity for word in words.values()} <= {"info"}
    assert [each for each in examiner.findings() if each.is_open] == []


def test_a_loss_that_repeats_itself_is_stuck_after_a_dozen_records():
    losses = [*curve(1, records=10), *[2.303] * 60]

    (finding,) = detect(run_of(losses), "plateau")

    assert (finding.severity, finding.start_step) == ("warning", 11)
    assert finding.noticed_step == 21
    assert finding.count == 60
    assert "constant at 2.303" in finding.message


def test_a_loss_against_an_opponent_is_no_warning_where_it_repeats_itself():
    (finding,) = detect(run_of([2.303] * 60, d_loss=[0.7] * 60), "plateau")

    assert finding.severity == "info"


def test_a_loss_that_moves_again_is_stuck_no_longer():
    losses = [*[2.303] * 60, *curve(1, records=100, first=2.3)]

    (finding,) = detect(run_of(losses), "plateau")

    assert (finding.state, finding.end_step, finding.resolved_step) == ("resolved", 60, 61)


def test_a_plateau_that_ends_like_grokking_is_resolved():
    dice = random.Random(1)
    losses = _flat_after(50, records=800, noise=0.02)
    losses += [math.exp(-place / 150.0 + dice.gauss(0.0, 0.02)) for place in range(800)]

    (finding,) = detect(run_of(losses), "plateau")

    assert finding.state == "resolved"
    assert 800 < finding.resolved_step < 1400


@pytest.mark.parametrize("value", [0.0, 1e-7])
def test_a_solved_loss_has_nothing_left_to_learn(value):
    losses = [3.0 * 0.8**place for place in range(60)] + [value] * 900

    assert detect(run_of(losses), "plateau") == []


def test_a_learning_rate_at_the_end_of_its_schedule_leaves_nothing_to_expect():
    losses = _flat_after(600, records=1500)
    lr = [3e-4 if place < 400 else 1e-6 for place in range(1500)]

    assert detect(run_of(losses, lr=lr), "plateau") == []
    assert len(detect(run_of(losses, lr=[3e-4] * 1500), "plateau")) == 1


def test_the_first_quarter_of_the_planned_steps_is_too_early_for_a_warning():
    records = run_of(_flat_after(100, records=1500))

    (finding,) = detect([{"event": "start", "session": 1, "max_steps": 100_000}, *records], "plateau")

    assert finding.severity == "info"


def test_how_often_a_slow_gain_without_a_plan_is_misjudged_grows_no_further():
    warned = 0
    for seed in range(longer(8, 20)):
        dice = random.Random(seed)
        tau, noise = dice.choice((3000, 8000, 20_000)), dice.choice((0.03, 0.1, 0.3))
        losses = [
            (2.0 * math.exp(-place / tau) + 0.5) * math.exp(dice.gauss(0.0, noise)) for place in range(2000)
        ]
        warned += any(finding.severity == "warning" for finding in detect(run_of(losses), "plateau"))

    # A gain of a few percent in noise of ten is not seen in time: this is a count of 20, as measured.
    assert warned <= 9


def test_a_short_run_that_never_moved_is_a_warning_unless_its_loss_is_not_meant_to_fall():
    losses = curve(1, records=160, noise=0.002, first=1.0, last=1.0)

    (finding,) = detect(run_of(losses), "plateau")
    (doubtful,) = detect(run_of(losses, reward=[1.0] * 160), "plateau")

    assert (finding.severity, doubtful.severity) == ("warning", "info")
