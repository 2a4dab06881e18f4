"""A span is read from its record whatever else is missing or wrong in the file."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from toolkit.telemetry.timing.span_record import read_span


def span(span_id, parent=None, *, start=100.0, duration=1.0, name="work", **fields):
    found = {"event": "span", "id": span_id, "name": name, "start": start, "duration": duration, **fields}
    return {**found, "parent_id": parent} if parent else found


def begun(span_id, parent=None, **fields):
    return {key: value for key, value in span(span_id, parent, **fields).items() if key != "duration"} | {
        "event": "span_start"
    }


def test_a_span_without_a_time_is_left_out():
    odd = [
        span("a", duration="long"),
        span("b", start=float("nan")),
        span("c", start=10**400),
        span("d", start=-1e300),
        span("e", duration=True),
        begun("f", start=None),
    ]

    assert [read_span(record) for record in odd] == [None] * len(odd)


def test_a_clock_that_was_set_back_makes_no_span_shorter_than_nothing():
    assert read_span(span("a", duration=-3.0)).duration == 0.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ids = st.sampled_from(["a", "b", "c", "d", ""]) | json_values
hostile = st.fixed_dictionaries(
    {"event": st.sampled_from(["span", "span_start", "span_event", "start", "end", "step"])},
    optional={
        "id": ids,
        "parent_id": ids,
        "span_id": ids,
        "name": json_values,
        "start": st.floats(0, 1e3) | json_values,
        "duration": st.floats(0, 1e3) | json_values,
        "time": st.floats(0, 1e3) | json_values,
        "session": st.integers(0, 2) | json_values,
        "rank": json_values,
        "attributes": json_values,
        "error": json_values,
    },
)


@without_haste
@given(hostile)
def test_whatever_a_record_holds_its_span_has_finite_times(record):
    found = read_span(record)

    if found is not None:
        json.dumps([found.start, found.duration], allow_nan=False)
