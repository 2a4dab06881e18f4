from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, run_of
from tests.lengths import longer
from toolkit.telemetry.diagnostics.catalogue import title_of


def _norms(seed=1, *, records=300, noise=0.3, level=1.0):
    dice = random.Random(seed)
    return [level * math.exp(dice.gauss(0.0, noise)) for _ in range(records)]


def _run(norms, losses=None):
    return run_of(losses if losses is not None else curve(1, records=len(norms)), grad_norm=norms)


@pytest.mark.parametrize("level", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize("seed", range(longer(2, 3)))
def test_norms_far_above_the_usual_are_one_incident_whatever_their_size(level, noise, seed):
    norms = _norms(seed, noise=noise, level=level)
    norms[150:156] = [30.0 * level] * 6

    (finding,) = detect(_run(norms), "exploding_grad")

    assert (finding.start_step, finding.noticed_step) == (151, 151)
    assert (finding.end_step, finding.resolved_step, finding.count) == (156, 161, 6)
    assert finding.evidence["ratio"] == pytest.approx(30.0, rel=0.2)


def test_two_norms_of_twelve_times_the_usual_are_reported_at_the_second():
    norms = _norms(noise=0.05)
    norms[150], norms[152] = 12.5, 12.5

    (finding,) = detect(_run(norms), "exploding_grad")

    assert (finding.start_step, finding.noticed_step) == (151, 153)


def test_one_norm_of_twelve_times_the_usual_was_clipped_and_is_gone():
    norms = _norms(noise=0.05)
    norms[150] = 12.5

    assert detect(_run(norms), "exploding_grad") == []


def test_one_such_norm_counts_where_the_loss_feels_it():
    norms = _norms(noise=0.05)
    norms[150] = 12.5
    losses = curve(1, noise=0.02)
    losses[151:156] = [2.0 * loss for loss in losses[151:156]]

    (finding,) = detect(_run(norms, losses), "exploding_grad")

    assert (finding.start_step, finding.noticed_step) == (151, 152)


@pytest.mark.parametrize("seed", range(longer(2, 10)))
def test_norms_that_vary_by_a_factor_of_three_are_not_reported(seed):
    assert detect(_run(_norms(seed, noise=0.5)), "exploding_grad") == []


@pytest.mark.parametrize("seed", range(longer(2, 5)))
def test_outliers_below_the_norms_of_the_start_are_not_reported_where_norms_fall_by_decades(seed):
    dice = random.Random(seed)
    norms = [100.0 * math.exp(-8.0 * place / 300) for place in range(300)]
    for place in range(40, 300, 15):
        norms[place] *= dice.uniform(10.0, 11.0)

    assert max(norms[60:]) < 300.0
    assert [each for each in detect(_run(norms), "exploding_grad") if each.start_step > 80] == []


def test_norms_that_stay_up_are_an_open_incident():
    norms = _norms(noise=0.1)
    norms[200:] = [40.0] * 100

    (finding,) = detect(_run(norms), "exploding_grad")

    assert finding.is_open
    assert finding.count == 100


def test_a_new_session_starts_with_larger_norms_and_is_not_reported():
    records = _run(_norms())
    again = [{**record, "grad_norm": 50.0} for record in records[:8]] + records[8:]

    assert detect([*records, {"event": "start", "session": 2}, *again], "exploding_grad") == []


@pytest.mark.parametrize(
    "norms",
    [
        [1.0] * 300,
        [min(1.0, norm) for norm in _norms(noise=1.0)],
        [500.0, 300.0, 200.0, 120.0, 90.0, 60.0, 40.0, 30.0, *_norms()],
        [0.01 * 1.02**place for place in range(300)],
    ],
    ids=["clipped always", "clipped now and then", "large at first", "growing step by step"],
)
def test_other_norms_are_not_reported(norms):
    assert detect(_run(norms), "exploding_grad") == []


def test_norms_that_follow_a_learning_rate_that_was_raised_are_named_so():
    norms = [1.0] * 200 + [30.0] * 8 + [1.0] * 92
    lr = [1e-6] * 200 + [3e-4] * 100

    (finding,) = detect(run_of(curve(1), grad_norm=norms, lr=lr), "exploding_grad")

    assert (finding.severity, title_of(finding)) == ("warning", "Rise with the learning rate")
    assert finding.message.endswith("The learning rate was raised from 1e-06 to 0.0003 at step 201.")
