"""Two configurations are laid side by side key by key, and compared by what the values mean."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import nested, tries
from toolkit.telemetry.runs.listing import config_diff
from toolkit.telemetry.runs.listing.config_diff import CUT, MISSING, diff, flatten, to_yaml

keys = st.text(st.sampled_from('ab.[]0"\\…'), max_size=4)
# YAML has other ends of lines, which the page replaces.
texts = st.text(st.characters(exclude_characters="\x85\u2028\u2029"), max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
configs = st.dictionaries(keys, trees, max_size=4)


def count_leaves(value):
    if isinstance(value, (dict, list)) and value:
        return sum(count_leaves(item) for item in (value.values() if isinstance(value, dict) else value))
    return 1


def test_keys_are_dotted_and_lists_indexed():
    flat = flatten({"a": {"b": 1, "c": [2, {"d": 3}]}, "e": None, "f": {}, "g": []})

    assert flat == {"a.b": 1, "a.c[0]": 2, "a.c[1].d": 3, "e": None, "f": {}, "g": []}


@tries
@given(config=configs)
def test_every_value_has_a_key_of_its_own(config):
    assert len(flatten(config)) == (count_leaves(config) if config else 0)


def test_depth_and_number_of_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(config_diff, "MAX_KEYS", 3)

    assert list(flatten({str(i): i for i in range(10)})) == ["0", "1", "2", CUT]
    assert set(flatten({"a": nested(5_000, kind=dict)}).values()) == {CUT}


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (1, 1.0, False),
        (True, 1, True),
        (False, 0.0, True),
        ("1", 1, True),
        (math.nan, math.nan, False),
        (math.nan, 1.0, True),
        (2**53 + 1, float(2**53), True),
        ({}, [], True),
        ([], (), False),
        (None, MISSING, True),
        ("x", "x", False),
    ],
)
def test_values_are_compared_by_meaning(a, b, differs):
    assert bool(diff([{"k": a}, {"k": b}])) is differs


@tries
@given(config=configs)
def test_a_configuration_does_not_differ_from_itself(config):
    assert diff([config, config, config]) == []


@tries
@given(config=configs)
def test_yaml_is_read_back_as_it_was(config):
    assert yaml.safe_load(to_yaml(config)) == config
