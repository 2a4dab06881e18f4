"""The learning rate rises in the warm-up and then keeps to its schedule."""

from __future__ import annotations

import pytest

from toolkit.trainer.schedule import learning_rate


def rates(kind, *, warmup=4, steps=20):
    return [
        learning_rate(step, lr=1.0, kind=kind, warmup=warmup, steps=steps) for step in range(1, steps + 1)
    ]


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_warm_up_rises_in_even_steps_to_the_full_rate(kind):
    assert rates(kind)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_falling_schedule_falls_all_the_way_and_never_to_nothing(kind):
    falling = rates(kind)[4:]

    assert falling == sorted(falling, reverse=True)
    assert 0 < falling[-1] < 0.1


def test_a_constant_rate_stays():
    assert set(rates("constant")[4:]) == {1.0}


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert rates("cosine", warmup=0)[0] == 1.0


def test_a_warm_up_longer_than_the_training_is_allowed():
    assert rates("linear", warmup=40)[-1] == 0.5
