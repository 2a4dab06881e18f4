"""What is kept of the metrics between two records: the last value of each, and its extremes where it varied."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
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
