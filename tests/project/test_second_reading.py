from __future__ import annotations

import math

import pytest

from benchmarks.diagnose_eval.second_reading import read_again

LOSSES = [3.0 - 0.01 * step + 0.02 * math.sin(5.0 * step) for step in range(100)]


def _rows(values, name="train_loss"):
    return [{"event": "step", "global_step": step, name: value} for step, value in enumerate(values)]


def _label(kind, start, end):
    return {"kind": kind, "certainty": "sure", "start_step": start, "end_step": end}


@pytest.mark.parametrize(
    ("peak", "after", "why"),
    [(6.0, 2.5, ""), (2.7, 2.5, "rises by"), (6.0, 6.0, "does not come back")],
)
def test_a_spike_rises_by_a_fifth_and_comes_back(peak, after, why):
    losses = [*LOSSES[:50], *[peak] * 5, *[after] * 45]

    assert why in read_again(_label("spike", 50, 54), _rows(losses))
    assert bool(read_again(_label("spike", 50, 54), _rows(losses))) == bool(why)


def test_a_divergence_ends_above_its_best():
    label = _label("divergence", 60, 99)

    assert read_again(label, _rows([*LOSSES[:60], *[3.5] * 40])) == ""
    assert read_again(label, _rows([*LOSSES[:60], *[math.nan] * 40])) == ""
    assert "from its best" in read_again(label, _rows(LOSSES))


def test_a_plateau_makes_no_progress_over_half_of_the_rows():
    flat = [*[3.0 - 0.05 * step for step in range(20)], *[2.0 + 0.001 * (step % 2) for step in range(80)]]

    assert read_again(_label("plateau", 20, 99), _rows(flat)) == ""
    assert read_again(_label("plateau", 70, 99), _rows(flat)) == "30% of the rows"
    assert "improvement" in read_again(_label("plateau", 10, 99), _rows(LOSSES))


def test_an_overfit_rises_by_a_tenth_and_has_four_evaluations_after_its_best():
    bowl = [2.0, 1.5, 1.2, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]

    assert read_again(_label("overfit", 3, 8), _rows(bowl, "val_loss")) == ""
    assert "evaluations after" in read_again(_label("overfit", 3, 5), _rows(bowl, "val_loss"))
    assert "only" in read_again(_label("overfit", 3, 8), _rows([*bowl[:4], *[1.05] * 5], "val_loss"))


def test_a_speed_falls_by_a_quarter_in_any_form():
    label = _label("throughput_drop", 50, 99)

    assert read_again(label, _rows([1.0] * 50 + [1.5] * 50, "epoch_time_s")) == ""
    assert read_again(label, _rows([1.0] * 50 + [0.9] * 50, "iters_per_sec")) == "falls by 10% only"
