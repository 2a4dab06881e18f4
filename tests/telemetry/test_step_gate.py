"""What is kept of steps without a record is right to the last digit, and a jump is distinguished from noise."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.logger.records.step_gate import BLOCK, StepGate

tries = settings(max_examples=longer(25, 60), deadline=None)


# ---------------------------------------------------------------- jumps


def alarms(series, log_every=1):
    """Return the places in `series` that are taken for jumps by a loop that logs every so many steps."""
    gate, found = StepGate(), []
    for place, loss in enumerate(series):
        if not gate.low < loss < gate.high:
            found.append(place)
            gate.take(loss)
        elif place % log_every == 0:
            gate.take(loss)
        else:
            gate.add(loss)
    return found


def noise(kind, count, seed):
    rng = random.Random(seed)
    if kind == "gaussian":
        return [0.5 + 0.1 * rng.gauss(0, 1) for _ in range(count)]
    if kind == "tight gaussian":
        return [0.5 + 1e-5 * rng.gauss(0, 1) for _ in range(count)]
    if kind == "uniform":
        return [rng.uniform(0.1, 0.9) for _ in range(count)]
    if kind == "falling":
        return [2.0 / (1 + place / 300) + 0.05 * rng.gauss(0, 1) for place in range(count)]
    if kind == "lognormal 0.5":
        return [rng.lognormvariate(-1, 0.5) for _ in range(count)]
    if kind == "lognormal 0.8":
        return [rng.lognormvariate(-1, 0.8) for _ in range(count)]
    assert kind == "constant"
    return [0.5] * count


@pytest.mark.parametrize("log_every", [1, 10])
@pytest.mark.parametrize(
    ("kind", "allowed_in_ten_thousand"),
    [
        ("gaussian", 0.5),
        ("tight gaussian", 0.5),
        ("uniform", 0.5),
        ("falling", 0.5),
        ("constant", 0.5),
        ("lognormal 0.5", 20),
        ("lognormal 0.8", 80),
    ],
)
def test_noise_without_a_trend_is_hardly_ever_taken_for_a_jump(kind, allowed_in_ten_thousand, log_every):
    count = 20_000
    found = sum(len(alarms(noise(kind, count // 4, seed), log_every)) for seed in range(4))
    print(f"{kind}, log_every={log_every}: {found} false alarms in {count} steps")

    assert found * 10_000 / count <= allowed_in_ten_thousand


def test_a_loss_that_stays_up_becomes_the_new_usual_after_a_while():
    series = [*noise("gaussian", 500, 1), *(loss + 10 for loss in noise("gaussian", 2000, 2))]
    found = alarms(series)

    assert found[0] == 500
    assert len(found) < 200
    assert found[-1] < 1500


def test_nothing_is_a_jump_before_anything_is_known():
    assert alarms([1e-9, 1e9, 1e-9, 1e9, -1e300, 1e300] * 2) == []


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300, 1e308])
def test_losses_of_any_size_leave_the_bounds_finite(size):
    gate = StepGate()
    for place in range(20 * BLOCK):
        gate.take(size * (1 + place % 3 / 10))

    assert math.isfinite(gate.high)
    assert gate.low < 0.5 * size < gate.high
    assert alarms([size] * 500) == []


@tries
@given(series=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=80))
def test_no_series_of_losses_spoils_the_bounds(series):
    gate = StepGate()
    for loss in series:
        gate.take(loss)
        gate.add(loss)
    gate.take(None)

    assert not math.isnan(gate.high)
