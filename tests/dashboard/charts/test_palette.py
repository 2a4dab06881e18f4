"""Colours: no two runs of a chart look the same, and no more than six colours are used at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.palette import DARK, LIGHT, RUN_COLOURS, free_colours, looks_of_runs
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.store import RunCard


def cards_called(names):
    status = Status(name="finished", why="", sure=True)
    return [RunCard(key=name, place=name, name=name, status=status) for name in names]


@given(names=st.lists(st.text(max_size=9), min_size=1, max_size=50, unique=True))
def test_no_two_runs_of_a_chart_look_the_same(names):
    found = looks_of_runs(cards_called(names))

    assert len(set(found.values())) == len(names)
    assert len({colour for colour, _ in found.values()}) == min(len(names), 6)
    assert looks_of_runs(cards_called(names)) == found


def test_runs_that_are_far_apart_keep_their_colours_and_twins_do_not():
    cards = cards_called("abc")
    far = [replace(card, colour=f"run-{number}") for number, card in enumerate(cards)]
    assert looks_of_runs(far) == {card.key: (card.colour, "solid") for card in far}

    # Two blues and two browns that the review mistook for each other.
    for pair in (
        ("#6A3FB5", "#3B4CC0"),
        ("#8E5229", "#8A5A00"),
        ("run-0", "#3B4CC0"),
        ("#123456", "#123457"),
    ):
        twins = [replace(card, colour=colour) for card, colour in zip(cards, (*pair, None), strict=True)]
        (first, _), (second, dash), _ = looks_of_runs(twins).values()
        assert first == pair[0]
        assert second != pair[1]
        assert dash == "solid"


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_colours_that_runs_are_given_are_far_from_each_other(theme):
    given_out = set(free_colours(cards_called(map(str, range(40)))).values())

    assert len(given_out) == len(RUN_COLOURS) - 3
    for one, two in combinations(given_out, 2):
        channels = [[int(theme[name][at : at + 2], 16) for at in (1, 3, 5)] for name in (one, two)]
        assert sum(abs(a - b) for a, b in zip(*channels, strict=True)) > 60, (one, two)


def test_both_themes_know_every_colour():
    assert set(LIGHT) == set(DARK)
