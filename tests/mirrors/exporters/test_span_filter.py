from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.mirrors.shared.span_filter import SpanFilter, SpanSelection, span_filter_from

_seq = itertools.count()


def record(event, time=100.0, **fields):
    return {"event": event, "time": time, "elapsed": 1.0, "seq": next(_seq), "session": 1, **fields}


def start(span_id, name, parent_id=None, **fields):
    return record("span_start", id=span_id, name=name, parent_id=parent_id, start=1.0, **fields)


def span(span_id, name, parent_id=None, **fields):
    return record("span", id=span_id, name=name, parent_id=parent_id, start=1.0, duration=0.5, **fields)


def event(span_id, span_name, name="tick", **fields):
    return record("span_event", span_id=span_id, span=span_name, name=name, **fields)


def parents(records):
    return {found["id"]: found["parent_id"] for found in records if "id" in found}


def test_names_are_ours_or_one_loggers_and_may_have_stars():
    assert SpanFilter(only=["model_forward"]).takes("forward")
    assert SpanFilter(only=["forward"]).takes("forward")
    assert SpanFilter(only=["*_loop"]).takes("validation_loop")
    assert not SpanFilter(only=["*_loop"]).takes("forward")
    assert not SpanFilter(except_=["*_single_iteration"]).takes("training_iteration")
    assert SpanFilter(except_=["*_single_iteration"]).takes("forward")
    assert not SpanFilter(only=["*"], except_=["forward"]).takes("forward")
    assert SpanFilter().takes("anything at all")


def test_a_filter_is_read_from_the_options():
    assert span_filter_from({"only": ["a", "b*"]}).only == ("a", "b*")
    assert span_filter_from({"except": "bad"}).except_ == ("bad",)
    assert span_filter_from(None).takes_all
    assert span_filter_from({}).takes_all


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["forward"], r"export_spans is \['forward'\]; it must be {only: \[names\]} or {except: \[names\]}"),
        ({"onyl": ["forward"]}, "export_spans.onyl .* is not an option; did you mean 'only'"),
        ({"only": 3}, "export_spans.only is 3; it must be a list of texts"),
        ({"only": None}, "export_spans.only is None; it must be a list of texts"),
        ({"except": ["a", ""]}, "export_spans.except"),
        ({"only": ["a"], "except": ["b"]}, "not both"),
    ],
)
def test_the_filter_and_the_options_refuse_the_same_with_the_same_words(given, said):
    with pytest.raises(OptionsError, match=said) as by_filter:
        span_filter_from(given)
    with pytest.raises(OptionsError) as by_options:
        TelemetryOptions(export_spans=given)

    assert str(by_options.value) == f"telemetry.{by_filter.value}"


def test_a_child_of_an_omitted_span_gets_the_nearest_exported_one_if_that_is_known():
    spans = SpanSelection(SpanFilter(except_=["middle"]))
    found = spans.take(
        [
            start("a", "outer"),
            start("b", "middle", "a"),
            span("c", "leaf", "b"),
            span("d", "leaf", "not announced"),
            span("b", "middle", "a"),
            span("a", "outer"),
        ]
    )

    assert parents(found) == {"a": None, "c": "a", "d": "not announced"}


def test_an_event_of_a_short_span_is_reported_by_the_nearest_exported_one():
    spans = SpanSelection(SpanFilter(only=["outer", "forward"]))

    # A span that is only added up has no id; its events stand under its parent's.
    found = spans.take(
        [
            start("a", "outer"),
            start("b", "middle", "a"),
            event("b", "forward"),
            event("a", "middle"),
            event("new", "forward"),
        ]
    )

    assert [one["span_id"] for one in found if one["event"] == "span_event"] == ["a", "new"]


@settings(max_examples=longer(25, 60), deadline=None)
@given(data=st.data())
def test_a_tree_stays_whole_whatever_is_left_out(data):
    count = data.draw(st.integers(1, 12))
    above = [None, *(data.draw(st.integers(0, child - 1)) for child in range(1, count))]
    names = [data.draw(st.sampled_from(["kept", "left out"])) for _ in range(count)]
    records = [
        start(str(one), names[one], None if above[one] is None else str(above[one])) for one in range(count)
    ]
    # Children end before their parents.
    records += [
        span(str(one), names[one], None if above[one] is None else str(above[one]))
        for one in reversed(range(count))
    ]
    cut = data.draw(st.integers(0, len(records)))
    spans = SpanSelection(SpanFilter(except_=["left out"]))

    found = spans.take(records[:cut]) + spans.take(records[cut:])

    def expected(one):
        one = above[one]
        while one is not None and names[one] != "kept":
            one = above[one]
        return None if one is None else str(one)

    ended = [one for one in found if one["event"] == "span"]
    assert [int(one["id"]) for one in ended] == [
        one for one in reversed(range(count)) if names[one] == "kept"
    ]
    assert all(one["parent_id"] == expected(int(one["id"])) for one in found)
