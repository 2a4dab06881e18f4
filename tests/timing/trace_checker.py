"""Reads a Chrome trace as a viewer does, knowing only the published format, and says what is wrong with it.

What it goes by: the Trace Event Format's fields for each phase, and that a viewer draws the events of one thread by how
they nest, so that two which cross each other cannot both be drawn.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict

KNOWN_PHASES = {"X", "B", "E", "M", "i", "C"}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
METADATA["thread_sort_index"] = "sort_index"


def check_trace(data: bytes) -> dict:
    """Return the trace that `data` holds; raise AssertionError with the first thing that a viewer would stumble on."""
    trace = json.loads(data, parse_constant=_refuse, object_pairs_hook=_no_key_twice)
    assert isinstance(trace, dict), "a trace is an object"
    assert trace.get("displayTimeUnit") in ("ms", "ns")
    events = trace.get("traceEvents")
    assert isinstance(events, list), "traceEvents is a list"
    named = {"process_name": set(), "thread_name": set()}
    for event in events:
        _check_fields(event)
        if event["ph"] == "M":
            assert event["name"] in METADATA, event
            assert METADATA[event["name"]] in event["args"], event
            if event["name"] == "process_name":
                named["process_name"].add(event["pid"])
            elif event["name"] == "thread_name":
                key = (event["pid"], event["tid"])
                assert key not in named["thread_name"], f"{key} is named twice"
                named["thread_name"].add(key)
    for event in events:
        assert event["pid"] in named["process_name"], f"the process of {event} has no name"
        if event["ph"] in "XBEi":
            assert (event["pid"], event["tid"]) in named["thread_name"], f"the thread of {event} has no name"
    _check_nesting(events)
    _check_counters(events)
    return trace


def slices(trace: dict) -> list[dict]:
    """Return the spans of a trace, in the order in which they began."""
    return sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))


def parents(trace: dict) -> dict[str, str | None]:
    """Return which span each one is drawn inside of, by their ids, found from the times alone."""
    found = {}
    stacks = defaultdict(list)
    for event in slices(trace):
        stack = stacks[event["pid"], event["tid"]]
        while stack and _end(stack[-1]) <= _ns(event["ts"]) and stack[-1]["dur"] > 0:
            stack.pop()
        found[event["args"]["id"]] = stack[-1]["args"]["id"] if stack else None
        stack.append(event)
    return found


def _check_fields(event) -> None:
    assert isinstance(event, dict)
    assert event.get("ph") in KNOWN_PHASES, event
    assert isinstance(event.get("name"), str), event
    assert event["name"], event
    for name in ("pid", "tid"):
        assert type(event.get(name)) is int, event
        assert 0 <= event[name] < 2**31, event
    assert _is_number(event.get("ts")), event
    assert event["ts"] >= 0, event
    assert isinstance(event.get("args", {}), dict), event
    if event["ph"] == "X":
        assert _is_number(event.get("dur")), event
        assert event["dur"] >= 0, event
    if event["ph"] == "i":
        assert event.get("s") in ("t", "p", "g"), event
    if event["ph"] == "C":
        assert event["args"], event
        assert all(_is_number(value) for value in event["args"].values()), event


def _check_nesting(events) -> None:
    """Every span is either inside another one of its thread or next to it."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
        assert event["ph"] not in "BE", "this trace is written with complete events only"
    for spans in threads.values():
        spans.sort(key=lambda event: (event["ts"], -event["dur"]))
        around = []
        for span in spans:
            # In whole nanoseconds, as a viewer keeps them.
            while around and around[-1] <= _ns(span["ts"]):
                around.pop()
            end = _end(span)
            assert not around or end <= around[-1], f"{span} crosses the end of the span around it"
            around.append(end)


def _check_counters(events) -> None:
    last = {}
    for event in events:
        if event["ph"] == "C":
            key = (event["pid"], event["name"])
            assert event["ts"] >= last.get(key, 0), f"the counter {key} goes back in time"
            last[key] = event["ts"]


def _end(event) -> int:
    return _ns(event["ts"]) + _ns(event["dur"])


def _ns(microseconds) -> int:
    return round(microseconds * 1000)


def _is_number(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _refuse(word):
    raise AssertionError(f"{word} is not JSON")


def _no_key_twice(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"duplicate key: {keys}"
    return dict(pairs)
