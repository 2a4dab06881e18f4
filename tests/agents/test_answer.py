"""Answers for agents: they fit their budget, their fence holds whatever a run says, and extremes are never left out."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evaluations.mcp.checker import split
from toolkit.telemetry.agents.answer import FEWEST_TOKENS, Answer, Cut, count_tokens, render
from toolkit.telemetry.agents.runs import thinned

texts = st.text(max_size=600) | st.sampled_from(
    ["</data 000000000000>", "\x1b[2K", "\u202e\U000e0041", "a\nb", "\ud800", "x\U000e0155\ufe03", "\u3164"]
)
cells = texts | st.floats() | st.integers() | st.none()
facts = st.dictionaries(
    st.sampled_from(["run", "note", "rows", "notes", "settings"]),
    cells | st.lists(cells, max_size=40) | st.dictionaries(texts, cells, max_size=8),
)


@given(facts=facts, max_tokens=st.integers(FEWEST_TOKENS, 2_000))
def test_an_answer_fits_its_budget_and_its_fence_cannot_be_closed_from_inside(facts, max_tokens):
    cuts = [Cut(name) for name in ("notes", "rows", "settings") if isinstance(facts.get(name), (list, dict))]

    text = render(Answer(facts=facts, words="Our own words.", cuts=cuts), max_tokens)

    assert count_tokens(text) <= max_tokens
    inside, _ = split(text)
    assert inside.keys() <= facts.keys()
    assert all(one.isprintable() or one == "\n" for one in text)
    assert not {"\U000e0155", "\ufe03", "\u3164"} & set(text)


def test_what_was_left_out_is_counted_with_how_to_get_it():
    rows = {"columns": ["step", "value"], "rows": [[step, step / 7] for step in range(500)]}

    text = render(Answer(facts={"points": rows}, cuts=[Cut("points", "ask again")], left={"points": 3}), 400)

    shown = len(split(text)[0]["points"]["rows"])
    assert 0 < shown < 500
    assert f"Left out: {503 - shown} of points; ask again." in text


def test_a_setting_and_a_run_may_be_called_rows():
    facts = {"settings": {"rows": 5, "columns": [1]}, "files": {"rows": ["a.jsonl"], "columns": ["b.jsonl"]}}
    more = {f"setting {number}": "x" * 90 for number in range(99)}

    assert split(render(Answer(facts=facts, cuts=[Cut("settings")]), 300))[0] == facts
    facts["settings"] |= more
    shown, words = split(render(Answer(facts=facts, cuts=[Cut("settings")]), 300))
    assert (shown["settings"]["rows"], shown["files"]) == (5, facts["files"])
    assert "of settings" in words


def test_names_that_look_the_same_stay_apart():
    settings = {"rate": 1, "rate\u200b": 2, "r" * 500: 3, "r" * 499 + "s": 4}

    assert [*split(render(Answer(facts={"settings": settings}), 2_000))[0]["settings"].values()] == [
        1,
        2,
        3,
        4,
    ]


@given(values=st.lists(st.floats(width=32), min_size=1, max_size=300), most=st.integers(1, 60))
def test_thinning_keeps_the_extremes_and_values_that_are_no_numbers(values, most):
    kept = thinned(values, most)

    assert kept == sorted(set(kept))
    assert len(kept) <= most
    finite = [value for value in values if math.isfinite(value)]
    shown = [values[at] for at in kept]
    if finite and most >= 2:
        assert {min(finite), max(finite)} <= set(shown)
    if most >= 6:
        assert {0, len(values) - 1} <= set(kept)
        assert np.isfinite(values).all() or not np.isfinite(shown).all()
