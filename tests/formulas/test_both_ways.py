"""A formula gives the same values whether its records come one by one or many at once."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formulas.one_by_one import OneByOne
from toolkit.telemetry.formulas.evaluation import Evaluation
from toolkit.telemetry.formulas.formula import parse

FORMULAS = [
    "val_loss / loss",
    "ema(loss, 0.9) - loss",
    "mean(val_loss, 3) * step + elapsed",
    "min(loss, 2) + max(loss, 4) - median(loss, 3)",
    "min(loss) + max(val_loss)",
    "delta(loss) - delta(val_loss)",
    "best(val_loss) - first(loss) + last(loss)",
    "loss > 1 and val_loss < 2 or loss == 0",
    "loss > 3 or val_loss > 3",
    "log(loss) + exp(val_loss) * loss - sqrt(abs(-loss)) / config.lr",
    "ema(delta(loss) + val_loss, 0.5)",
    "(loss + step) / val_loss * (2 * step)",
    "max(loss - val_loss, 2) >= mean(delta(val_loss), 2)",
]
number = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 4.0, 1e300, -1e300, math.nan, math.inf, -math.inf]),
    st.floats(-10, 10),
)
record = st.fixed_dictionaries({}, optional={"loss": number, "val_loss": number, "lr": number})


def places(row):
    return {"step": row + 1.0, "time": 100.0 + row // 2, "elapsed": 0.5 * row, "epoch": 0.0}


@settings(max_examples=80)
@given(
    text=st.sampled_from(FORMULAS),
    records=st.lists(record, max_size=14),
    sessions=st.sets(st.integers(0, 13), max_size=2),
    cuts=st.sets(st.integers(0, 13), max_size=5),
)
def test_records_one_by_one_and_many_at_once_have_equal_values(text, records, sessions, cuts):
    settings = {"lr": 0.5}.get
    single, several = OneByOne(parse(text), settings), Evaluation(parse(text), settings)
    expected, got = {}, {}
    for row, values in enumerate(records):
        if row in sessions:
            single.restart()
        found = single.take(values, places(row))
        if found is not None:
            expected[row] = found
    for first, last in pairwise(sorted({0, *sessions, *cuts, len(records)})):
        if first in sessions:
            several.restart()
        chunk = {}
        for row in range(first, min(last, len(records))):
            for name, value in records[row].items():
                rows, values = chunk.setdefault(name, ([], []))
                rows.append(row)
                values.append(value)
        rows, values = several.take(chunk, lambda name, rows: [places(row)[name] for row in rows])
        got.update(zip(rows, values, strict=True))

    assert got.keys() == expected.keys()
    np.testing.assert_array_equal(list(got.values()), list(expected.values()))


def test_a_metric_that_a_record_lacks_has_its_last_known_value():
    records = [{"loss": 4.0}, {"val_loss": 2.0}, {"loss": 1.0}, {"lr": 1.0}, {"val_loss": 3.0, "loss": 2.0}]
    stream = OneByOne(parse("val_loss / loss"))

    assert [stream.take(record) for record in records] == [None, 0.5, 2.0, None, 1.5]


def test_a_function_counts_the_records_of_its_own_metrics():
    stream = OneByOne(parse("mean(val_loss, 2) + 0 * loss"))
    records = [{"loss": 1.0, "val_loss": 4.0}, {"loss": 1.0}, {"loss": 1.0}, {"val_loss": 2.0}, {"loss": 1.0}]

    assert [stream.take(record) for record in records] == [4.0, 4.0, 4.0, 3.0, 3.0]


def test_nan_passes_through_an_average_and_leaves_no_trace():
    stream = OneByOne(parse("ema(loss, 0.5)"))
    values = [stream.take({"loss": value}) for value in (2.0, math.nan, math.inf, 2.0)]

    assert math.isnan(values[1])
    assert [values[0], *values[2:]] == [2.0, math.inf, 2.0]
    window = OneByOne(parse("mean(loss, 2)"))
    assert [window.take({"loss": value}) for value in (1.0, 1e300, 3.0, 4.0)] == [1.0, 5e299, 5e299, 3.5]


def test_another_session_forgets_all_but_what_is_of_the_run():
    of_session, of_run = OneByOne(parse("mean(loss, 9)")), OneByOne(parse("best(loss)"))
    for stream in (of_session, of_run):
        stream.take({"loss": 1.0})
        stream.restart()

    assert (of_session.take({"loss": 5.0}), of_run.take({"loss": 5.0})) == (5.0, 1.0)
