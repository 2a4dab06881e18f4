from __future__ import annotations

import random

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, run_of


def norms(share, *, seed=1, records=300, begins=100):
    dice = random.Random(seed)
    return [0.0 if place >= begins and dice.random() < share else 0.5 for place in range(records)]


@pytest.mark.parametrize("seed", range(3))
def test_norms_that_are_often_zero_with_a_scale_at_its_minimum_are_a_warning(seed):
    records = run_of(curve(1), grad_norm=norms(0.5, seed=seed), loss_scale=[1.0] * 300)

    (finding,) = detect(records, "underflow")

    assert finding.severity == "warning"
    assert 101 <= finding.start_step <= 110
    assert finding.is_open


def test_without_a_scale_they_are_info():
    (finding,) = detect(run_of(curve(1), grad_norm=norms(0.5)), "underflow")

    assert finding.severity == "info"


def test_norms_that_are_back_resolve_it():
    records = run_of(curve(1), grad_norm=norms(0.5)[:200] + [0.5] * 100)

    (finding,) = detect(records, "underflow")

    assert not finding.is_open


def test_a_growing_share_of_zero_gradients_is_a_warning():
    shares = [0.1] * 100 + [0.8] * 200

    (finding,) = detect(run_of(curve(1), zero_grad_share=shares), "underflow")

    assert (finding.severity, finding.start_step, finding.noticed_step) == ("warning", 101, 140)


@pytest.mark.parametrize(
    "others",
    [
        {"grad_norm": norms(0.05)},
        {"grad_norm": norms(1.0)},
        {"grad_norm": norms(0.5), "reward": [0.5] * 300},
        {"grad_norm": norms(0.5, begins=0)[:30] + [None] * 270},
        {"zero_grad_share": [0.8] * 300},
        {"zero_grad_share": [0.1] * 270 + [0.8] * 30},
    ],
    ids=["rare", "all", "rl", "short", "always", "one look"],
)
def test_other_zeros_are_no_underflow(others):
    assert detect(run_of(curve(1), **others), "underflow") == []
