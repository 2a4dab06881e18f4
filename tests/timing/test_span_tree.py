"""The tree of spans is rebuilt even if something is missing or wrong in the file."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import without_haste
from tests.timing.span_run import span_records
from toolkit.timing.span_tree import (
    IN_A_CIRCLE,
    MAX_DEPTH,
    TOO_DEEP,
    UNKNOWN_PARENT,
    build_tree,
    read_span,
)


def span(span_id, parent=None, *, start=100.0, duration=1.0, name="work", **fields):
    found = {"event": "span", "id": span_id, "name": name, "start": start, "duration": duration, **fields}
    return {**found, "parent_id": parent} if parent else found


def begun(span_id, parent=None, **fields):
    return {key: value for key, value in span(span_id, parent, **fields).items() if key != "duration"} | {
        "event": "span_start"
    }


def shape(tree):
    """Return the tree as names within names."""

    def of(nodes):
        return {node.span.id: of(node.children) for node in nodes}

    return of(tree.roots)


def test_children_come_under_their_parents_in_the_order_in_which_they_began():
    tree = build_tree(
        [
            span("c", "b", start=103.0),
            span("d", "a", start=101.0),
            span("b", "a", start=102.0, duration=3.0),
            span("a", start=100.0, duration=9.0),
        ]
    )

    assert shape(tree) == {"a": {"d": {}, "b": {"c": {}}}}
    assert list(shape(tree)["a"]) == ["d", "b"]
    assert [(depth, node.span.id) for depth, node in tree.walk()] == [(0, "a"), (1, "d"), (1, "b"), (2, "c")]


def test_a_beginning_and_its_end_are_one_span():
    tree = build_tree([begun("a"), span("b", "a"), span("a", duration=5.0)])

    assert shape(tree) == {"a": {"b": {}}}
    assert tree.roots[0].state == "done"
    assert tree.roots[0].end == 105.0


def test_a_span_without_an_end_is_open_until_its_session_ends():
    records = [begun("a", session=1, time=100.0), {"event": "step", "session": 1, "time": 107.0}]

    going_on = build_tree(records).roots[0]
    after_the_next_start = build_tree([*records, {"event": "start", "session": 2, "time": 200.0}]).roots[0]

    assert (going_on.state, going_on.end) == ("open", 107.0)
    assert (after_the_next_start.state, after_the_next_start.end) == ("died", 107.0)
    assert build_tree(records, ended=True).roots[0].state == "died"


def test_a_span_without_a_written_parent_is_put_under_the_enclosing_span_and_marked():
    tree = build_tree([span("a", start=100.0, duration=50.0), span("b", "gone", start=110.0)])
    alone = build_tree([span("b", "gone")])

    assert shape(tree) == {"a": {"b": {}}}
    assert tree.roots[0].children[0].misplaced == UNKNOWN_PARENT
    assert shape(alone) == {"b": {}}
    assert alone.roots[0].misplaced == UNKNOWN_PARENT


def test_spans_that_are_their_own_ancestors_are_all_there_once():
    tree = build_tree([span("a", "c"), span("b", "a"), span("c", "b"), span("self", "self")])

    assert sorted(node.span.id for _, node in tree.walk()) == ["a", "b", "c", "self"]
    assert sum(node.misplaced == IN_A_CIRCLE for _, node in tree.walk()) == 2


def test_ids_of_another_session_or_rank_are_other_spans():
    tree = build_tree([span("a", session=1), span("b", "a", session=2), span("a", session=1, rank=1)])

    assert len(tree.roots) == 3
    assert tree.duplicates == 0


def test_a_span_that_is_written_twice_counts_once():
    tree = build_tree([span("a", duration=1.0), span("a", duration=2.0), begun("a")])

    assert shape(tree) == {"a": {}}
    assert tree.roots[0].end == 101.0
    assert tree.duplicates == 1


def test_a_chain_of_ten_thousand_is_flat_from_some_depth_on():
    tree = build_tree([span(str(n), str(n - 1) if n else None) for n in range(10_000)])
    depths = [depth for depth, _ in tree.walk()]

    assert len(depths) == 10_000
    assert max(depths) == MAX_DEPTH - 1
    assert any(node.misplaced == TOO_DEEP for _, node in tree.walk())


def test_what_happened_inside_a_span_is_with_it():
    happened = {"event": "span_event", "span_id": "a", "name": "cache_miss"}
    tree = build_tree([begun("a"), happened, {**happened, "span_id": "gone"}, span("a")])

    assert [record["name"] for record in tree.roots[0].events] == ["cache_miss"]


def test_a_span_without_a_time_is_counted_and_left_out():
    odd = [
        span("a", duration="long"),
        span("b", start=float("nan")),
        span("c", start=10**400),
        span("d", start=-1e300),
        span("e", duration=True),
        begun("f", start=None),
    ]
    tree = build_tree(odd)

    assert tree.roots == []
    assert tree.skipped == len(odd)


def test_a_clock_that_was_set_back_makes_no_span_shorter_than_nothing():
    assert read_span(span("a", duration=-3.0)).duration == 0.0


def test_the_example_run_is_one_tree_a_session():
    tree = build_tree(span_records())
    first, second = tree.roots

    assert [root.span.name for root in tree.roots] == ["application", "application"]
    assert (first.state, second.state) == ("died", "done")
    assert {node.span.name for _, node in tree.walk() if node.state == "died"} == {
        "application",
        "training_loop",
        "checkpoint_save_sync",
    }
    loop = next(node for node in second.children if node.span.name == "training_loop")
    assert {node.span.name for node in loop.children} == {
        "training_iteration",
        "validation_loop",
        "checkpoint_save_sync",
    }
    assert not [node for _, node in tree.walk() if node.misplaced]


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
@given(st.lists(hostile, max_size=12))
def test_whatever_the_records_hold_every_span_is_in_the_tree_once(records):
    tree = build_tree(records)
    spans = [found for record in records if (found := read_span(record)) is not None]
    named = {(found.rank, found.session, found.id) for found in spans if found.id}
    nameless = [found for found in spans if not found.id]

    nodes = [node for _, node in tree.walk()]
    assert len(nodes) == len(named) + len(nameless)
    assert all(child.parent is node for node in nodes for child in node.children)
    json.dumps([node.end for node in nodes], allow_nan=False)
