"""What is kept of the metrics between two records: the last value of each, and its extremes where it varied."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.logger.records import folded_metrics
from toolkit.telemetry.logger.records.folded_metrics import COLUMNS, FoldedMetrics

NAMES = ("grad_norm", "lr", "own", "time")


def a_row(fields):
    """Return the fields as the logger hands them over where they are all plain numbers."""
    own = {name: value for name, value in fields.items() if name not in COLUMNS}
    return (*(fields.get(name) for name in COLUMNS), own)


@settings(max_examples=longer(25, 200), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.booleans(),
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(NAMES, st.floats() | st.integers(-(2**53), 2**53))
            ),
        ),
        max_size=30,
    ),
    record=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES[:3], st.floats())),
)
def test_a_record_has_the_last_and_the_extremes_of_all_that_was_given(steps, record):
    metrics = FoldedMetrics()
    for is_plain, fields in steps:
        if is_plain:
            metrics.rows.append(a_row(fields))
        else:
            metrics.add({name.replace("time", "x_time"): value for name, value in fields.items()})
    own = dict(record)
    metrics.take_into(record)

    for name in NAMES:
        shown = name.replace("time", "x_time")
        folded = [float(fields[name]) for _, fields in steps if name in fields]
        if not folded:
            assert record.get(shown, 0) is own.get(name, 0)
            continue
        values = [*folded, own[name]] if name in own else folded
        numbers = [value for value in values if not math.isnan(value)]
        assert record[shown] == pytest.approx(values[-1], nan_ok=True)
        if len(set(numbers)) > 1:
            greatest = max(numbers) if len(numbers) == len(values) else math.nan
            assert record[f"{shown}_min"] == min(numbers)
            assert record[f"{shown}_max"] == pytest.approx(greatest, nan_ok=True)
        elif len(numbers) == len(values):
            assert f"{shown}_min" not in record
        finite = [value for value in numbers if math.isfinite(value)]
        if f"{shown}_mean" in record and max(map(abs, finite)) < 1e6:
            assert record[f"{shown}_mean"] == pytest.approx(sum(finite) / len(finite), abs=1e-3)
    assert not metrics.rows
    assert not metrics.sums


@pytest.mark.parametrize("gap", [[], [{}]])
def test_an_integer_beyond_all_floats_loses_no_other_value(gap):
    metrics = FoldedMetrics()
    for fields in [
        {"epoch": 0.5, "lr": 1e-4},
        {"epoch": 10**400},
        *gap,
        {"epoch": 2, "lr": 2e-4, "own": 0.5},
        {"own": 10**400},
    ]:
        metrics.rows.append(a_row(fields))
    record = {}
    metrics.take_into(record)

    assert (record["epoch"], record["lr"], record["lr_max"], record["own"]) == (2, 2e-4, 2e-4, 10**400)


ODD = {
    "whole": (0, 1, 2, 3),
    "both": (1, 1.0, 2, 2.0, 0.0, -0.0),
    "large": (2**53 + 1, 2**53 + 2, 2**70, -(2**63), 10**400, 3.5),
    "not finite": (math.nan, math.inf, -math.inf, 1.0),
    "at the end": (1e300, -1e300, 9e299, 1e308, 1.0),
    "sometimes": (None, 1.0, 2),
}


def a_metric(random):
    """Return a function that returns the next value of a metric of one of many kinds."""
    kind = random.choice(("constant", "varying", "varying", *ODD))
    base = random.choice((0.0, 1e-4, -3.0, 1234.5))
    if kind == "constant":
        return lambda: base
    if kind == "varying":
        return lambda: base + random.random()
    return lambda: random.choice(ODD[kind])


@pytest.mark.parametrize("seed", range(4))
def test_plain_rows_give_the_record_that_adding_them_up_one_by_one_gives(seed, monkeypatch):
    random = Random(seed)
    spread_of_plain_rows = folded_metrics._spread_of_plain_rows
    in_short = 0

    def take_into(rows, record):
        metrics, record = FoldedMetrics(), dict(record)
        metrics.rows += rows
        metrics.take_into(record)
        return record

    for _ in range(longer(500, 5_000)):
        own = random.sample(("a", "b", "a_mean", "lr_max", "time"), random.choice((0, 0, 1, 2, 3)))
        names = [*(name for name in COLUMNS if random.random() < 0.5), *own]
        metrics = {name: a_metric(random) for name in names}
        record = {"train_loss": 0.5}
        record |= {name: value() for name, value in metrics.items() if random.random() < 0.95}
        if random.random() < 0.05:
            record[random.choice(("lr", "lr_min", "a"))] = random.choice((True, None, "text", 3.0))
        rows = []
        for _ in range(random.choice((1, 2, 9))):
            step = {name: value() for name, value in metrics.items()}
            own_metrics = {name: step[name] for name in own if step[name] is not None}
            rows.append((*(step.get(name) for name in COLUMNS), own_metrics or None))
        in_short += spread_of_plain_rows(rows, record) is not None
        found = take_into(rows, record)
        with monkeypatch.context() as patch:
            patch.setattr(folded_metrics, "_spread_of_plain_rows", lambda *_: None)
            expected = take_into(rows, record)

        # Also the same types, and in the same order.
        assert repr(found) == repr(expected)
    assert in_short > 50
