"""A loss that is too good at once, and one that does not move."""

from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import curve, detect, run_of

START = {"event": "start", "session": 1, "max_steps": 100_000}


def leaking(seed=1, *, after=10, to=0.002):
    return [
        loss if place < after else loss * to for place, loss in enumerate(curve(seed, first=2.0, last=2.0))
    ]


def test_a_loss_that_is_next_to_nothing_at_once_is_a_warning_early_in_the_plan():
    (finding,) = detect([START, *run_of(leaking())], "label_leak")

    assert (finding.severity, finding.start_step, finding.noticed_step) == ("warning", 11, 60)


def test_without_a_plan_it_is_info_because_an_easy_task_looks_the_same():
    (finding,) = detect(run_of(leaking()), "label_leak")

    assert finding.severity == "info"


def test_a_loss_of_exactly_0_from_the_start_counts_nothing():
    (finding,) = detect(run_of([0.0] * 40, grad_norm=[0.0] * 40), "label_leak")

    assert (finding.severity, finding.noticed_step) == ("warning", 20)
    assert "exactly 0 from the first record" in finding.message


@pytest.mark.parametrize(
    "records",
    [
        run_of(curve(1)),
        run_of(leaking(after=50)),
        run_of(leaking(to=0.1)),
        run_of(leaking()[:50]),
        run_of(leaking(), reward=[0.5] * 300),
        run_of([0.0] * 15 + curve(1)),
        run_of([0.0] * 40, grad_norm=[0.3] * 40),
        run_of([-loss for loss in leaking()]),
    ],
    ids=["healthy", "later", "a tenth", "short", "rl", "buffer", "gradients", "negative"],
)
def test_other_starts_are_not_suspicious(records):
    assert detect([START, *records], "label_leak") == []


def still(rate, *, noise=0.004, records=400, **others):
    losses = curve(3, records=records, noise=noise, first=2.0, last=2.0)
    return run_of(losses, **{"lr": [rate] * records, "grad_norm": [0.8] * records, **others})


def test_a_learning_rate_that_moves_nothing_is_a_warning():
    (finding,) = detect(still(2e-9), "lr_too_small")

    assert (finding.severity, finding.start_step, finding.noticed_step) == ("warning", 1, 200)
    assert "2e-09" in finding.message
    assert finding.is_open


def test_a_usual_learning_rate_that_moves_nothing_is_info():
    (finding,) = detect(still(1e-4), "lr_too_small")

    assert finding.severity == "info"


def test_it_is_resolved_when_the_loss_moves():
    records = still(2e-9)[:250]
    records += [
        {**each, "global_step": each["global_step"] + 250, "train_loss": 1.0} for each in still(2e-9)[:60]
    ]

    (finding,) = detect(records, "lr_too_small")

    assert not finding.is_open


@pytest.mark.parametrize(
    "records",
    [
        run_of(curve(3, records=400, first=2.0, last=1.8), lr=[2e-9] * 400, grad_norm=[0.8] * 400),
        still(1e-4, noise=0.3),
        still(2e-9)[:150],
        still(2e-9, grad_norm=[0.0] * 400),
        still(0.0),
        still(2e-9, reward=[0.5] * 400),
        still(2e-9, lr=[1e-9 * 1.02**place for place in range(400)]),
    ],
    ids=["learns", "noise", "short", "no gradients", "no rate", "rl", "warm-up"],
)
def test_other_flat_starts_are_not_its_fault(records):
    assert detect(records, "lr_too_small") == []
