"""Every number that was logged: filtered, in pages, and as a table."""

from __future__ import annotations

import pytest

from tests.dashboard.views.pages import open_page
from tests.lengths import in_make_faults
from tests.made_runs import step_record, write_run


@pytest.fixture
def several(logs):
    names = ("train_loss", "lr", "reward/mean", "reward/max", "a+b", "gpu_util", "cpu_percent")
    write_run(logs, "r", curves=dict.fromkeys(names, float), sessions=(range(10),))


def titles(tab):
    return [text.value.replace("\\", "") for text in tab.subheader]


def test_metrics_are_grouped_by_the_first_part_of_their_name(several):
    tab = open_page("metrics", "r")

    assert tab.charts() == 5
    assert groups(tab) == {"loss": "Hide", "training": "Hide", "reward": "Hide", "system": "Show"}

    for group in ("training", "reward", "system"):
        tab.button(key=f"_group {group}").click().run()

    assert groups(tab) == {"loss": "Hide", "training": "Show", "reward": "Show", "system": "Hide"}
    assert tab.charts() == 3


def groups(tab):
    """Return the groups, and what a click on each would do."""
    found = [item for item in tab.button if item.key and item.key.startswith("_group ")]
    return {item.key.removeprefix("_group "): item.label for item in found}


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("reward", {"reward/mean", "reward/max"}),
        ("REWARD/M", {"reward/mean", "reward/max"}),
        ("^lr$", {"lr"}),
        ("loss|util", {"train_loss", "gpu_util"}),
        ("", {"train_loss", "lr", "reward/mean", "reward/max", "a+b"}),
        ("gpu|cpu", {"gpu_util", "cpu_percent"}),
    ],
)
def test_a_part_of_the_name_or_a_regular_expression_filters(several, pattern, shown):
    tab = open_page("metrics", "r", filter=pattern)

    assert shown <= set(titles(tab))
    assert tab.charts() == len(shown)


@pytest.mark.parametrize("pattern", ["a+b(", "[", "*", "(?P<", "\\"])
def test_what_is_no_regular_expression_is_searched_as_text(several, pattern):
    tab = open_page("metrics", "r", filter=pattern)

    assert any("invalid regular expression" in warning.value for warning in tab.warning)
    assert "None of 7 metrics matches the filter." in tab.said()


@pytest.mark.parametrize("pattern", [r"(.*)(.*)(.*)\1\2\3x", "(?=a)", "a{1,9999}", "(a{999}){999}"])
def test_a_pattern_without_a_linear_search_is_searched_as_text(logs, pattern):
    write_run(logs, "r", curves={"a" * 600 + "!": float, pattern: float}, sessions=(range(3),))

    tab = open_page("metrics", "r", filter=pattern)

    assert "searched as plain text" in tab.said()
    assert tab.charts() == 1


@pytest.mark.parametrize(
    "pattern",
    [
        *("a.*a.*!", "^A+!$", "(a|b)!", "[ab]!"),
        # Each would take Python's own expressions for ever.
        *("(a+)+!$", "(a|a)(a|a)(a|a)(a|a)!$", "(a?){600}" + "a" * 90, ".*.*.*.*.*.*.*!$", "(a{1,9}){1,9}!$"),
    ],
)
def test_patterns_are_searched_in_linear_time(logs, pattern):
    write_run(logs, "r", curves={"a" * 600 + "!": float, "b" * 600: float}, sessions=(range(3),))

    tab = open_page("metrics", "r", filter=pattern)

    assert "plain text" not in tab.said()
    assert tab.charts() == 1


def test_a_filter_that_is_far_too_long_is_ignored_and_reported(several):
    tab = open_page("metrics", "r", filter="(a+)+" * 100)

    assert "longer than 200 characters" in tab.said()
    assert tab.charts() == 5


def test_of_many_groups_the_first_are_open(logs):
    names = [f"g{group:02d}/m{number:02d}" for group in range(10) for number in range(10)]
    write_run(logs, "r", curves=dict.fromkeys(names, float), sessions=(range(3),))

    tab = open_page("metrics", "r")

    assert len(groups(tab)) == 10
    assert [group for group, does in groups(tab).items() if does == "Hide"] == ["g00", "g01"]
    assert tab.charts() == 20

    tab.text_input(key="filter").set_value("g07").run()

    assert groups(tab) == {"g07": "Hide"}
    assert tab.charts() == 10


# test_of_many_groups_the_first_are_open shows in `make test` that not all charts are drawn.
@in_make_faults
def test_more_than_five_thousand_names_are_no_more_than_a_large_group(logs):
    write_run(
        logs,
        "r",
        [step_record(step, **{f"layer/{step}/{number}": 1.0 for number in range(600)}) for step in range(10)],
    )

    tab = open_page("metrics", "r")

    assert tab.charts() == 60
    assert "more: use the filter to see them." in tab.said()
    assert open_page("overview", "r").is_well()


def test_metrics_of_one_pattern_can_be_drawn_in_one_chart(several):
    tab = open_page("metrics", "r", filter="loss|^lr", one="true")

    (chart,) = tab.curve_charts()
    assert (chart["title"], chart["legend"]) == ("loss|^lr", True)
    assert [curve["metric"] for curve in chart["curves"]] == ["train_loss", "lr"]
