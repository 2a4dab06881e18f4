from __future__ import annotations

import pytest

from tests.diagnostics.synthetic_runs import changed, clean_run, detect, run_of
from tests.lengths import longer


def _with_dead_gradients(seed, noise, *, from_step=2000, loss=1.7):
    records = clean_run(seed, noise=noise)
    records = changed(records, "grad_norm", lambda step, norm: norm * 1e-9 if step >= from_step else norm)
    return changed(records, "train_loss", lambda step, value: loss if step >= from_step else value)


@pytest.mark.parametrize("seed", range(longer(2, 5)))
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_gradients_that_vanish_while_the_loss_is_flat_are_reported(seed, noise):
    (finding,) = detect(_with_dead_gradients(seed, noise), "vanishing_grad")

    assert finding.start_step == 2000
    assert finding.noticed_step == 2190
    assert finding.metric == "grad_norm"
    assert finding.is_open
    assert "stays at 1.7" in finding.message


def test_a_solved_task_has_no_gradients_and_no_problem():
    assert detect(_with_dead_gradients(1, 0.1, loss=0.001), "vanishing_grad") == []


def test_a_loss_that_falls_is_learnt_from_whatever_the_norm_says():
    records = changed(clean_run(1), "grad_norm", lambda step, norm: 0.0)

    assert detect(records, "vanishing_grad") == []


def test_gradients_of_exactly_0_from_the_first_record_on_are_reported_after_a_while():
    records = changed(clean_run(1), "grad_norm", lambda step, norm: 0.0)
    records = changed(records, "train_loss", lambda step, loss: 2.3)

    (finding,) = detect(records, "vanishing_grad")

    assert finding.start_step == 10
    assert finding.noticed_step == 600
    assert "from step 10 on" in finding.message


def test_single_zeros_are_batches_without_a_target():
    records = changed(clean_run(2), "grad_norm", lambda step, norm: 0.0 if step % 20 else norm)

    assert detect(records, "vanishing_grad") == []


def test_it_is_over_when_gradients_come_back():
    records = changed(clean_run(2), "grad_norm", lambda step, norm: 0.0 if 2000 <= step < 3000 else norm)
    records = changed(records, "train_loss", lambda step, loss: 1.5 if 2000 <= step < 3000 else loss)

    (finding,) = detect(records, "vanishing_grad")

    assert (finding.end_step, finding.resolved_step) == (2990, 3040)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_unit_of_a_norm_does_not_matter(unit):
    norms = [unit] * 100 + [1e-5 * unit] * 100

    (finding,) = detect(run_of([2.0, 2.1] * 100, grad_norm=norms), "vanishing_grad")

    assert finding.start_step == 101
