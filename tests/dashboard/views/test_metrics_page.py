"""Every number that was logged: filtered, in pages, and as a table."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.run_folders import step_record, write_run
from tests.dashboard.views.pages import charts, downloads, is_well, open_page, said


@pytest.fixture
def several(logs):
    names = ("train_loss", "lr", "reward/mean", "reward/max", "a+b", "gpu_util", "cpu_percent")
    write_run(logs, "r", curves=dict.fromkeys(names, float), sessions=(range(10),))


def titles(tab):
    return [text.value.strip("*").replace("\\", "") for text in tab.markdown if text.value.startswith("**")]


def test_metrics_are_grouped_by_the_first_part_of_their_name(several):
    tab = open_page("metrics", "r")

    assert is_well(tab)
    assert charts(tab) == 7
    groups = [text.value.split()[1] for text in tab.markdown if text.value.startswith("#####")]
    assert groups == ["step", "reward", "system"], "the training first, the machine last"


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("reward", {"reward/mean", "reward/max"}),
        ("REWARD/M", {"reward/mean", "reward/max"}),
        ("^lr$", {"lr"}),
        ("loss|util", {"train_loss", "gpu_util"}),
        ("", {"train_loss", "lr", "reward/mean", "reward/max", "a+b", "gpu_util", "cpu_percent"}),
    ],
)
def test_a_part_of_the_name_or_a_regular_expression_filters(several, pattern, shown):
    tab = open_page("metrics", "r", filter=pattern)

    assert is_well(tab)
    assert shown <= set(titles(tab))
    assert charts(tab) == len(shown)


@pytest.mark.parametrize("pattern", ["a+b(", "[", "*", "(?P<", "\\"])
def test_what_is_no_regular_expression_is_searched_as_text(several, pattern):
    tab = open_page("metrics", "r", filter=pattern)

    assert is_well(tab)
    assert any("invalid regular expression" in warning.value for warning in tab.warning)
    assert "None of 7 metrics matches the filter." in said(tab)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)(a|a)(a|a)(a|a)$", "a?" * 40 + "a" * 40, ".*.*.*.*x", "(a{1,9}){1,9}$"]
)
def test_a_pattern_that_would_take_for_ever_is_searched_as_text(logs, pattern):
    write_run(logs, "r", curves={"a" * 60 + "!": float}, sessions=(range(3),))

    tab = open_page("metrics", "r", filter=pattern)

    assert is_well(tab)
    assert "searched as plain text" in said(tab)


@pytest.mark.parametrize("pattern", ["a.*a.*!", "^a+!$", "(a|b)!", "[ab]!"])
def test_ordinary_patterns_stay_regular_expressions(logs, pattern):
    write_run(logs, "r", curves={"a" * 60 + "!": float}, sessions=(range(3),))

    tab = open_page("metrics", "r", filter=pattern)

    assert "plain text" not in said(tab)
    assert charts(tab) == 1


def test_a_filter_that_is_far_too_long_is_ignored_and_reported(several):
    tab = open_page("metrics", "r", filter="(a+)+" * 100)

    assert is_well(tab)
    assert "longer than 200 characters" in said(tab)
    assert charts(tab) == 7


def test_many_metrics_come_in_pages(logs):
    write_run(logs, "r", curves={f"m{number:03d}": float for number in range(60)}, sessions=(range(3),))

    tab = open_page("metrics", "r")

    assert charts(tab) == 24
    assert "Page (of 3)" in [item.label for item in tab.number_input]

    tab.number_input(key="page").set_value(3).run()

    assert is_well(tab)
    assert charts(tab) == 12


def test_a_filter_that_leaves_fewer_pages_shows_the_first_of_them(logs):
    write_run(logs, "r", curves={f"m{number:03d}": float for number in range(60)}, sessions=(range(3),))
    tab = open_page("metrics", "r")
    tab.number_input(key="page").set_value(3).run()

    tab.text_input(key="filter").set_value("m00").run()

    assert is_well(tab)
    assert charts(tab) == 10


def test_a_page_in_the_url_that_does_not_exist_is_no_blank_page(logs):
    write_run(logs, "r", curves={f"m{number:03d}": float for number in range(60)}, sessions=(range(3),))

    for number in ("99", "-1", "x", "0"):
        tab = open_page("metrics", "r", page=number)

        assert is_well(tab), number
        assert charts(tab), number


def test_more_than_five_thousand_names_are_no_more_than_many_pages(logs):
    write_run(
        logs,
        "r",
        [step_record(step, **{f"layer/{step}/{number}": 1.0 for number in range(600)}) for step in range(10)],
    )

    tab = open_page("metrics", "r")

    assert is_well(tab)
    assert charts(tab) == 24
    assert any("Page (of " in item.label for item in tab.number_input)
    assert is_well(open_page("overview", "r"))


def test_points_are_there_as_a_table_and_as_csv(several):
    tab = open_page("metrics", "r")
    tab.selectbox(key="_data_metric").set_value("lr").run()

    assert is_well(tab)
    assert list(tab.dataframe[0].value["value"]) == [float(step) for step in range(10)]
    assert "All points as CSV" in downloads(tab)


@pytest.mark.parametrize("columns", ["1", "4", "9", "x"])
def test_any_number_of_columns_in_the_url_is_drawn_or_left_out(several, columns):
    tab = open_page("metrics", "r", cols=columns)

    assert is_well(tab)
    assert charts(tab) == 7
