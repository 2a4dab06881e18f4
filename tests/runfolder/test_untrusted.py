"""Numbers, texts and mappings out of untrusted JSON."""

from __future__ import annotations

import math

import pytest

from toolkit.telemetry.runfolder.untrusted import (
    finite_in,
    mapping_in,
    mappings_in,
    number_in,
    parse_object,
    texts_in,
    whole_in,
)


@pytest.mark.parametrize("value", [None, True, "1", [], {}, 10**400])
def test_what_is_not_a_number_is_not_one(value):
    assert number_in(value) is finite_in(value) is whole_in(value) is None


def test_numbers_are_read_within_their_limits():
    assert (number_in(3), finite_in(0.5), whole_in(3)) == (3.0, 0.5, 3)
    assert math.isinf(number_in(math.inf))
    assert finite_in(math.nan) is whole_in(3.0) is whole_in(2**53) is None


def test_lists_and_mappings_keep_what_has_the_right_type():
    assert texts_in(["a", 1, None, "b"]) == ["a", "b"]
    assert mappings_in([{"a": 1}, 2]) == [{"a": 1}]
    assert texts_in("ab") == mappings_in({"a": 1}) == []
    assert mapping_in([1]) == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1]", "holds a list, not an object"),
        (b"{", "is not JSON"),
        (b"{}" + b" " * 100, "is larger than 100 bytes"),
        (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "is nested too deeply"),
    ],
)
def test_an_invalid_object_is_named(data, message):
    with pytest.raises(ValueError, match=f"labels.json {message}"):
        parse_object(data, "labels.json", 100, ValueError)
