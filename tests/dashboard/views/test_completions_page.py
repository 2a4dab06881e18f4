"""Completions page: the list, one of them in full, and the same prompt at another step."""

from __future__ import annotations

import html
import math
import re

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import append, completion, write_run


def rows(tab):
    (found,) = tab.sent("rows")
    return found["rows"]


def chosen(tab):
    return tab.sent("rows")[0]["chosen"]


def codes(tab):
    return [code.value for code in tab.code]


@pytest.fixture
def show(logs):
    """Write completions as a run, and open the page on it."""

    def write_and_open(records, status="finished", **query):
        write_run(logs, "r", extra=records, status=status)
        tab = open_page("samples", "r", **query)
        assert tab.is_well()
        return tab

    return write_and_open


def test_a_run_without_any_says_how_to_get_some(show):
    tab = show([])

    assert "No samples." in tab.said()
    assert any("log.log_completion(step" in code for code in codes(tab))
    assert "GRPO" in tab.said()


def test_next_to_samples_they_are_one_click_away_and_a_link_shows_them(show):
    image = {"event": "sample", "time": 1.7e9, "path": "s.png", "prompt": "a cat", "global_step": 1}

    tab = show([image, completion(1, "answer 1")])

    assert tab.samples() is not None
    assert codes(tab) == []
    assert codes(open_page("samples", "r", show="Completions")) == ["answer 1"]


def test_they_are_listed_newest_first_and_the_first_is_shown_in_full(show):
    tab = show(
        [completion(step, f"answer {step}", prompt=f"Why {step}?", reward=step / 2) for step in (1, 2, 3)]
    )

    assert [(row["step"], row["prompt"], row["answer"], row["reward"]) for row in rows(tab)] == [
        ("step 3", "Why 3?", "answer 3", "1.5"),
        ("step 2", "Why 2?", "answer 2", "1"),
        ("step 1", "Why 1?", "answer 1", "0.5"),
    ]
    assert codes(tab) == ["Why 3?", "answer 3"]
    assert chosen(tab) == rows(tab)[0]["place"]
    assert "3 completions" in tab.said()


def test_the_address_names_the_one_that_is_shown_and_one_that_is_not_there_is_the_first(show, logs):
    tab = show([completion(step, f"answer {step}") for step in (1, 2, 3)])
    place = rows(tab)[2]["place"]

    tab = open_page("samples", "r", i=str(place))
    assert codes(tab) == ["answer 1"]
    assert chosen(tab) == place

    for other in ("12345678", "-1", "x", "9" * 40, "١٢", str(place + 1)):
        tab = open_page("samples", "r", i=other)
        assert codes(tab) == ["answer 3"], other


def test_a_choice_stays_while_new_ones_arrive(show, logs):
    tab = show([completion(step, f"answer {step}") for step in (1, 2, 3)], status="running")
    place = rows(tab)[1]["place"]
    tab = open_page("samples", "r", i=str(place))

    append(logs / "r", [completion(9, "brand new")])
    tab.run()

    assert [row["step"] for row in rows(tab)] == ["step 9", "step 3", "step 2", "step 1"]
    assert chosen(tab) == place
    assert codes(tab) == ["answer 2"]


def test_search_steps_and_sorting_are_in_the_address(show):
    records = [completion(step, f"sky {step}" if step % 2 else "sea", reward=-step) for step in range(10)]
    show(records)

    tab = open_page("samples", "r", find="SKY", step="3-7", order="Lowest reward")

    assert [row["answer"] for row in rows(tab)] == ["sky 7", "sky 5", "sky 3"]
    assert "3 of 10 completions" in tab.said()

    tab.text_input(key="find").set_value("elephant").run()
    assert "No completions match." in tab.said()

    tab.text_input(key="find").set_value("").run()
    tab.text_input(key="step").set_value("abc").run()
    assert "'abc' is not a step or range; write 300, 100-200, 100- or -200" in tab.said()
    assert len(rows(tab)) == 10


def test_a_search_shows_nothing_but_what_it_found(show):
    tab = show([completion(1, "the sea"), completion(2, "the sky"), completion(3, "a cloud")])
    sea = rows(tab)[2]["place"]

    tab = open_page("samples", "r", i=str(sea), find="sky")
    assert codes(tab) == ["the sky"]
    assert chosen(tab) == rows(tab)[0]["place"]

    tab.text_input(key="find").set_value("elephant").run()
    assert codes(tab) == []

    tab.text_input(key="find").set_value("THE").run()
    assert codes(tab) == ["the sea"]
    assert chosen(tab) == sea

    tab.text_input(key="step").set_value("2-").run()
    assert codes(tab) == ["the sky"]


def test_many_are_shown_a_page_at_a_time(show):
    tab = show([completion(step) for step in range(120)])

    assert len(rows(tab)) == 50
    assert rows(tab)[0]["step"] == "step 119"
    (pages,) = tab.get("pagination")
    assert pages.proto.num_pages == 3


def test_nan_and_rewards_by_function_are_shown(show):
    tab = show(
        [
            completion(1, reward=math.nan, **{"rewards/format": 1.0, "rewards/maths": 0.25}),
            completion(2, kind="grpo", split="eval", advantage=-0.5, label=False, finish_reason="length"),
        ]
    )

    assert [(row["kind"], row["reward"]) for row in rows(tab)] == [
        ("grpo · eval", "advantage -0.5"),
        ("completion", "NaN"),
    ]
    assert "label undesirable" in tab.said()
    assert "finish_reason length" in tab.said()

    tab = open_page("samples", "r", i=str(rows(tab)[1]["place"]))
    assert "reward NaN · rewards/format 1 · rewards/maths 0.25" in tab.said()


_SIDE = re.compile(
    r'side-title">(.*?)</span>.*?side-about">(.*?)</span>.*?tabindex="0">(.*?)</div>', re.DOTALL
)


def panes(tab):
    """Return title, note and text of each side; what is marked as inserted is in [], as deleted in {}."""
    shown = next((data["html"] for data in tab.sent("html") if "telemetry-sides" in data["html"]), "")
    for name, mark in (("<ins>", "["), ("</ins>", "]"), ("<del>", "{"), ("</del>", "}")):
        shown = shown.replace(name, mark)
    return [tuple(map(html.unescape, side)) for side in _SIDE.findall(shown)]


def test_a_pair_is_side_by_side_with_its_words_marked(show):
    tab = show(
        [
            {
                "event": "completion",
                "global_step": 5,
                "prompt": "What colour?",
                "chosen": "the sky is blue",
                "rejected": "the sky is green",
                "reward_diff": 0.7,
                "rewards/chosen": 0.5,
                "rewards/rejected": -0.2,
                "kind": "dpo",
            }
        ]
    )

    assert panes(tab) == [
        ("chosen", "reward 0.5", "the sky is [blue]"),
        ("rejected", "reward -0.2", "the sky is {green}"),
    ]
    assert rows(tab)[0]["reward"] == "reward_diff 0.7"


def test_the_same_prompt_at_an_earlier_step_is_shown_next_to_it(show):
    tab = show(
        [
            completion(100, "the sky is grey", prompt="What colour?", reward=0.1),
            completion(100, "unrelated", prompt="Another?"),
            completion(200, "the sky is blue", prompt="What colour?", reward=0.9),
            completion(200, "sky blue the is", prompt="What colour?", reward=0.2),
        ]
    )

    assert "The same prompt occurs 2 more times." in tab.said()
    assert [pane[:2] for pane in panes(tab)] == [
        ("step 100", "reward 0.1"),
        ("step 200", "reward 0.2"),
    ]

    places = [row["place"] for row in rows(tab)]
    tab = open_page("samples", "r", i=str(places[1]))
    assert [pane[2] for pane in panes(tab)] == ["the sky is {grey}", "the sky is [blue]"]

    compared = next(box for box in tab.selectbox if box.label == "Compare with")
    compared.set_value(places[0]).run()
    assert [pane[0] for pane in panes(tab)] == ["step 200", "step 200"]

    tab = open_page("samples", "r", i=str(places[2]))
    assert panes(tab) == []


def test_two_that_differ_in_nothing_or_everything_are_reported_so(show):
    words = [" ".join(f"{letter}{number}" for number in range(2_000)) for letter in "ab"]
    tab = show([completion(1, words[0], prompt="p"), completion(2, words[1], prompt="p")])
    assert "differ too much" in tab.said()
    assert [pane[2] for pane in panes(tab)] == words


def test_the_question_of_a_chat_is_in_the_list_and_not_its_system_prompt(show):
    tab = show([completion(1, prompt="system: Be brief.\n\nuser: What colour is the sky?")])

    assert rows(tab)[0]["prompt"] == "What colour is the sky?"
    assert codes(tab)[0] == "system: Be brief.\n\nuser: What colour is the sky?"


def test_a_truncated_text_and_dropped_completions_are_reported(show):
    tab = show(
        [
            completion(1, "long … [100 of 200 characters left out] … end", cut=["completion"]),
            {"event": "completions_dropped", "session": 1, "from_step": 0, "to_step": 99, "dropped": 1_234},
        ]
    )

    assert "completion was too long for a record and is truncated." in tab.said()
    assert "1,234 more were not recorded" in tab.said()
