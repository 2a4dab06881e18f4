"""Runs over each other: curves, a baseline, groups, and what was configured differently."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.charts.test_curves import unpacked
from tests.dashboard.run_folders import write_run
from tests.dashboard.views.pages import chart_data, charts, headings, is_well, open_page, run_table, said
from toolkit.runfolder.labels import Labels, read_labels, write_labels


@pytest.fixture
def ten(logs):
    for number in range(10):
        write_run(
            logs,
            f"r{number}",
            curves={"train_loss": lambda step, number=number: 1.0 + number, "lr": float},
            start={"config": {"lr": number, "batch": 4, "optimizer": {"name": "adam", "eps": number % 2}}},
            tags=("even",) if number % 2 == 0 else ("odd", "all"),
            sessions=(range(20),),
        )
    return logs


def curve_names(tab):
    return {trace["name"] for trace in json.loads(json.loads(chart_data(tab)[0])["figure"])["data"]}


def test_without_runs_picked_the_page_says_what_to_pick(ten):
    tab = open_page("compare")

    assert is_well(tab)
    assert "Pick two to 50 runs" in said(tab)


def test_two_runs_are_drawn_over_each_other_and_compared_with_the_first(ten):
    tab = open_page("compare", runs="r0,r1")

    assert is_well(tab)
    assert charts(tab) == 2
    assert {"r0", "r1"} <= curve_names(tab)
    summary = run_table(tab).set_index("Run")
    assert summary["last"]["r0"] == "1 ★"
    assert summary["last"]["r1"] == "2  (+100.0%)"
    assert "Really better?** Not decided whether r1 is better than r0" in said(tab)
    assert "lr 2 of 2 runs" in said(tab).replace("**", "").replace(":gray[", "").replace("]", "")


def test_the_baseline_can_be_changed(ten):
    tab = open_page("compare", runs="r0,r1")

    tab.selectbox(key="base").set_value("r1").run()

    summary = run_table(tab).set_index("Run")
    assert summary["last"]["r0"] == "1  (-50.0%) ★"
    assert summary["last"]["r1"] == "2"
    assert tab.query_params["base"] == "r1"


def test_metric_and_baseline_come_from_the_link(ten):
    tab = open_page("compare", runs="r0,r1", base="r1", metric="lr")

    assert tab.selectbox(key="base").value == "r1"
    assert "lr compared with r1" in headings(tab)


def test_eight_runs_are_drawn_each_in_its_own_look(ten):
    tab = open_page("compare", runs=",".join(f"r{number}" for number in range(8)))

    assert is_well(tab)
    assert {f"r{number}" for number in range(8)} <= curve_names(tab)
    traces = json.loads(json.loads(chart_data(tab)[0])["figure"])["data"]
    looks = {(t["line"]["color"], t["line"].get("dash")) for t in traces if t["name"] in curve_names(tab)}
    assert len(looks) >= 8


def test_no_more_than_fifty_are_taken_from_the_url_and_the_page_says_so(logs):
    for number in range(52):
        write_run(logs, f"r{number}", sessions=(range(2),))
    tab = open_page("compare", runs=",".join(f"r{number}" for number in range(52)))

    assert is_well(tab)
    assert len(tab.multiselect[0].value) == 50
    assert "Not shown: the last 2 runs of the link, because at most 50 are compared." in said(tab)


def test_unknown_runs_in_the_url_are_left_out(ten):
    tab = open_page("compare", runs="r0,gone,../../etc,r1,")

    assert is_well(tab)
    assert tab.multiselect[0].value == ["r0", "r1"]
    assert "Not shown: gone, ../../etc, because there is no such run." in said(tab)

    assert "Pick two to 50 runs" in said(open_page("compare", runs="gone,nowhere"))


def test_only_what_was_configured_differently_is_listed(ten):
    tab = open_page("compare", runs="r0,r1")

    config = tab.dataframe[0].value.set_index("Run")
    assert list(config.columns) == ["lr", "eps"]
    assert list(config["lr"]) == ["0", "1"]


def test_names_and_tags_are_no_differences(logs):
    for name in "ab":
        write_run(logs, name, start={"config": {"name": name, "telemetry": {"tags": [name, "x"]}, "lr": 1}})

    assert "No differences in the logged configuration." in said(open_page("compare", runs="a,b"))


def test_runs_are_grouped_by_any_setting_or_by_tag(ten):
    runs = ",".join(f"r{number}" for number in range(10))
    by_setting = open_page("compare", runs=runs, by="optimizer.eps")
    by_tag = open_page("compare", runs=runs, by="tag")

    assert is_well(by_setting)
    assert is_well(by_tag)
    assert {"0 (n = 5)", "1 (n = 5)"} <= curve_names(by_setting)
    assert {"even (n = 5)", "odd (n = 5)", "all (n = 5)"} <= curve_names(by_tag)


def test_groups_are_compared_with_one_of_them(ten):
    runs = ",".join(f"r{number}" for number in range(10))
    tab = open_page("compare", runs=runs, by="optimizer.eps", against="1")

    assert is_well(tab)
    assert "difference from 1\n" in said(tab)
    traces = json.loads(json.loads(chart_data(tab)[0])["figure"])["data"]
    means = {trace["name"]: unpacked(trace["y"]) for trace in traces if trace.get("showlegend")}
    # The losses are 1, 3, 5, 7, 9 and 2, 4, 6, 8, 10.
    assert means["0 (n = 5)"] == pytest.approx(-1.0)
    assert means["1 (n = 5)"] == pytest.approx(0.0)


def colours(logs):
    return [read_labels(logs / f"r{number}").colour for number in range(10)]


def test_a_run_keeps_the_colour_it_had_when_it_was_first_compared(ten):
    write_labels(ten / "r3", Labels(colour="#123456", notes="mine"))
    several = ",".join(f"r{number}" for number in range(8))
    table = run_table(open_page("compare", runs=several))
    first = colours(ten)

    assert len(table) == 8
    assert first[3] == "#123456"
    assert read_labels(ten / "r3").notes == "mine"
    assert len(set(first[:8])) == 8, "there are twelve colours"
    assert first[8:] == [None, None]

    open_page("compare", runs="r9,r5")

    assert colours(ten)[:9] == first[:9]
    assert colours(ten)[9] not in (None, first[5])


def test_a_read_only_page_writes_no_colour(ten, look_at):
    look_at(ten, read_only=True)

    assert is_well(open_page("compare", runs="r0,r1,r2"))
    assert colours(ten) == [None] * 10


def test_equal_configurations_are_reported_as_equal(logs):
    for name in "ab":
        write_run(logs, name, start={"config": {"lr": 1}})

    assert "No differences in the logged configuration." in said(open_page("compare", runs="a,b"))


def test_another_metric_can_be_compared(ten):
    tab = open_page("compare", runs="r0,r1")

    tab.selectbox(key="metric").set_value("lr").run()

    assert is_well(tab)
    assert "lr" in headings(tab)


@pytest.mark.parametrize("along", ["Step", "Relative time", "Wall time"])
def test_runs_can_be_laid_along_steps_or_time(ten, along):
    tab = open_page("compare", runs="r0,r1", x=along)

    assert is_well(tab)
    assert charts(tab) == 2


def test_runs_without_anything_in_common_or_at_all_are_compared_all_the_same(logs):
    write_run(logs, "a", curves={"x": float})
    write_run(logs, "b", curves={"y": float})
    write_run(logs, "c", [], status="starting")
    write_run(logs, "d", curves={"x": lambda step: 0.0})

    for runs in ("a,b", "a,c", "c,b", "d,a"):
        assert is_well(open_page("compare", runs=runs)), runs


def test_a_baseline_of_zero_gives_no_percentage(logs):
    write_run(logs, "zero", curves={"train_loss": lambda step: 0.0})
    write_run(logs, "one", curves={"train_loss": lambda step: 1.0})

    summary = run_table(open_page("compare", runs="zero,one")).set_index("Run")

    assert summary["last"]["one"] == "1"


def test_the_title_counts_what_is_no_number(logs):
    write_run(logs, "r", curves={"train_loss": lambda step: math.nan if step == 7 else 1.0})
    write_run(logs, "s")

    assert "1 NaN" in said(open_page("compare", runs="r,s"))


def test_namesakes_have_labels_in_curves_tables_and_every_select(logs):
    for number in range(3):
        write_run(
            logs,
            f"same-{number}",
            display_name="same",
            curves={"train_loss": lambda step, number=number: 1.0 + number},
            start={"config": {"lr": 10.0**-number}},
            sessions=(range(5),),
        )
    labels = {"same-0 lr=1", "same-1 lr=0.1", "same-2 lr=0.01"}

    tab = open_page("compare", runs="same-0,same-1,same-2")
    assert is_well(tab)
    assert labels <= curve_names(tab)
    assert set(run_table(tab)["Run"]) == labels
    assert set(tab.selectbox(key="base").options) == labels
    assert len({*tab.multiselect(key="_compared").options}) == 3

    sweep = open_page("sweep")
    assert "Best of 3 runs: **same-0 lr=1**" in said(sweep)
    assert "**same-1 lr=0.1**, is 100 %" in said(sweep)
    for page in ("overview", "config_notes"):
        tab = open_page(page, run="same-0")
        for select in tab.selectbox:
            assert len(set(select.options)) == len(select.options), (page, select.label)


def test_why_two_runs_differ_is_said_on_a_click_and_not_before(logs):
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        write_run(logs, name, start={"config": {"learning_rate": rate, "notes": name}})
    tab = open_page("compare", runs="a,b")
    assert "equal" not in said(tab)

    tab.button(key="_why_asked").click().run()

    assert is_well(tab)
    assert "They are equal to the last digit" in said(tab)
    assert any("the likely causes first" in expander.label for expander in tab.expander)
