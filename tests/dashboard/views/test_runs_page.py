"""The list of runs: found, filtered, sorted, picked."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("streamlit")

from dashboard.data.local_store import LocalStore
from tests.dashboard.run_folders import append, step_record, write_run
from tests.dashboard.views.pages import button, is_well, open_page, press_in_dialog, said
from toolkit.runfolder.labels import Labels, read_labels, write_labels


def names(tab):
    return list(tab.dataframe[0].value["Run"]) if tab.dataframe else []


@pytest.fixture
def five(logs):
    write_run(logs, "lora-a", tags=("baseline",), summary={"train_loss": 0.5, "max_steps": 99, "lr": 1e-3})
    write_run(logs, "lora-b", status="failed", summary={"train_loss": 0.1, "max_steps": 990})
    write_run(logs, "full-c", status="running", summary={"train_loss": 2.0})
    write_run(logs, "full-d", status="lost", host="elsewhere", labels=Labels(tags=("baseline", "x y")))
    write_run(logs, "old", labels=Labels(archived=True))
    return logs


def test_every_run_is_listed_with_status_and_progress(five):
    table = open_page("runs").dataframe[0].value.set_index("Run")

    assert sorted(table.index) == ["full-c", "full-d", "lora-a", "lora-b"]
    assert table["Status"]["lora-a"] == "■ Finished"
    assert table["Status"]["lora-b"] == "✕ Failed"
    assert table["Status"]["full-c"] == "● Running"
    assert table["Progress"]["lora-a"] == 1.0
    assert table["Progress"]["lora-b"] == pytest.approx(0.1)
    assert table["Loss"]["lora-b"] == "0.1"


def test_findings_that_go_on_are_counted_in_the_list(logs):
    write_run(logs, "bad", status="running", summary={"findings_critical": 1, "findings_warning": 3})
    write_run(logs, "odd", status="running", summary={"findings_critical": "many", "findings_warning": None})
    write_run(logs, "good", status="running")
    table = open_page("runs").dataframe[0].value.set_index("Run")

    assert table["Alerts"]["bad"] == "✕ 1  ▲ 3"
    assert table["Alerts"]["odd"] == ""
    assert table["Alerts"]["good"] == ""


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("lora", {"lora-a", "lora-b"}),
        ("-lora", {"full-c", "full-d"}),
        ("tag:baseline", {"lora-a", "full-d"}),
        ('tag:"x y"', {"full-d"}),
        ("status:failed", {"lora-b"}),
        ("loss<0.3", {"lora-b"}),
        ("lr>1e-4", {"lora-a"}),
        ("host:elsewhere", {"full-d"}),
        ("nothing-like-this", set()),
    ],
)
def test_the_search_box_finds(five, query, found):
    tab = open_page("runs", q=query)

    assert is_well(tab)
    assert set(names(tab)) == found
    assert bool(found) != ("No runs match." in said(tab))


@pytest.mark.parametrize("query", ["colour:red", "loss<much", '"open', "-", "<", "x" * 3000])
def test_a_search_that_means_nothing_is_explained_and_hides_no_run(five, query):
    tab = open_page("runs", q=query)

    assert is_well(tab)
    assert len(tab.warning) == 1
    assert len(names(tab)) == 4


def test_typing_into_the_search_box_filters(five):
    tab = open_page("runs")

    tab.text_input(key="q").set_value("tag:baseline").run()

    assert set(names(tab)) == {"lora-a", "full-d"}


def test_pills_filter_by_status(five):
    tab = open_page("runs")
    pills = next(item for item in tab.get("button_group") if item.key == "status")
    assert "Failed 1" in said(tab)

    pills.set_value(["failed"]).run()

    assert names(tab) == ["lora-b"]


@pytest.mark.parametrize(("order", "first"), [("name", "full-c"), ("loss", "lora-b"), ("status", "full-c")])
def test_the_list_is_sorted_as_asked(five, order, first):
    tab = open_page("runs", sort=order)

    assert names(tab)[0] == first


def test_the_last_sign_of_life_sorts_without_being_asked(five):
    assert names(open_page("runs"))[0] == "full-c"


def test_nothing_can_be_done_before_a_row_is_picked(five):
    tab = open_page("runs")

    assert all(button(tab, label).disabled for label in ("Open", "Compare", "Tag…", "Archive"))


def table_key(tab):
    return f"_runs_table {tab.session_state['_runs_table_version']}"


def pick(tab, *wanted):
    """Pick rows of the table as a browser does."""
    order = names(tab)
    tab.session_state[table_key(tab)] = {
        "selection": {"rows": [order.index(name) for name in wanted], "columns": [], "cells": []}
    }
    return tab.run()


def test_one_picked_run_can_be_opened(five):
    tab = pick(open_page("runs"), "lora-b")

    button(tab, "Open").click().run()

    assert [heading.value for heading in tab.subheader] == ["lora\\-b"]


def test_two_picked_runs_can_be_compared(five):
    tab = pick(open_page("runs"), "lora-a", "lora-b")

    button(tab, "Compare 2").click().run()

    assert is_well(tab)
    assert "### Compare" in said(tab)
    assert sorted(tab.multiselect[0].value) == ["lora-a", "lora-b"]


def test_picked_runs_are_archived_together(five):
    tab = pick(open_page("runs"), "lora-a", "lora-b")

    button(tab, "Archive").click().run()

    assert read_labels(five / "lora-a").archived
    assert read_labels(five / "lora-b").archived
    assert sorted(names(open_page("runs"))) == ["full-c", "full-d"]


def test_picked_runs_get_a_tag_besides_their_own(five):
    tab = pick(open_page("runs"), "lora-a", "lora-b")
    tab.session_state["_new_tags"] = ["x y"]
    button(tab, "Tag…").click().run()

    press_in_dialog(tab, button(tab, "Tag…").click, "Add")

    assert read_labels(five / "lora-a").tags == ("baseline", "x y")
    assert read_labels(five / "lora-b").tags == ("x y",)


def test_links_and_files_beside_the_runs_are_passed_over_and_said(five, tmp_path):
    (five / "link").symlink_to(tmp_path)
    (five / "notes.txt").write_text("hello")
    (five / "empty").mkdir()

    tab = open_page("runs")

    assert len(names(tab)) == 4
    assert "link is a symbolic link and is not followed" in said(tab)


@pytest.fixture
def _every_call_looks(monkeypatch):
    """ChartStyle at the folder each time: a test changes it quickly, and a slow look would put off the next."""
    scan = LocalStore._scan
    monkeypatch.setattr(LocalStore, "_scan", lambda store, *, again=False: scan(store, again=True))


@pytest.mark.usefixtures("_every_call_looks")
def test_a_selection_stays_with_its_run_when_rows_above_it_vanish(logs):
    for name in ("a", "b", "c"):
        write_run(logs, name)
    tab = open_page("runs")
    shown = list(tab.session_state["_runs_shown"])
    pick(tab, shown[1])
    write_labels(logs / shown[0], Labels(archived=True))

    tab.run()

    (row,) = tab.session_state[table_key(tab)]["selection"]["rows"]
    assert tab.session_state["_runs_shown"][row] == shown[1]


@pytest.mark.usefixtures("_every_call_looks")
def test_a_picked_run_that_vanishes_is_not_replaced_by_another(logs):
    for name in ("a", "b", "c"):
        write_run(logs, name)
    tab = open_page("runs")
    shown = list(tab.session_state["_runs_shown"])
    pick(tab, shown[1])
    write_labels(logs / shown[1], Labels(archived=True))

    tab.run()

    assert list(tab.session_state[table_key(tab)]["selection"]["rows"]) == []


def test_several_projects_can_be_looked_at_one_by_one(logs):
    for name, project in (("a", "faces"), ("b", "faces"), ("c", "cars"), ("d", None)):
        write_run(logs, name, project=project)
    tab = open_page("runs")

    assert len(names(tab)) == 4

    tab.selectbox(key="project").set_value("faces").run()

    assert is_well(tab)
    assert sorted(names(tab)) == ["a", "b"]
    assert "2 of 4 runs" in said(tab)
    assert sorted(names(open_page("runs", project="cars"))) == ["c"]


@pytest.mark.usefixtures("_every_call_looks")
def test_a_long_list_has_pages_and_a_shorter_one_fewer(logs):
    for number in range(250):
        (logs / f"r{number:03d}").mkdir()
        append(logs / f"r{number:03d}", [step_record(number)])

    tab = open_page("runs", sort="name")
    tab.number_input(key="page").set_value(3).run()

    assert is_well(tab)
    assert names(tab) == [f"r{number:03d}" for number in range(200, 250)]
    assert "250 of 250 runs" in said(tab)

    tab.text_input(key="q").set_value("-r2").run()

    assert is_well(tab)
    assert tab.number_input(key="page").value == 2
    assert names(tab) == [f"r{number:03d}" for number in range(100, 200)]
    assert "200 of 250 runs" in said(tab)

    for number in range(240):
        os.utime(logs / f"r{number:03d}" / "metrics.jsonl", (1.7e9, 1.7e9))
    tab.text_input(key="q").set_value("").run()
    tab.selectbox(key="updated").set_value("last day").run()

    assert is_well(tab)
    assert names(tab) == [f"r{number:03d}" for number in range(240, 250)]


def test_a_run_beyond_those_that_are_listed_opens_by_its_address(logs, monkeypatch):
    monkeypatch.setattr("dashboard.data.run_listing._MAX_RUNS", 2)
    for number in range(4):
        folder = write_run(logs, f"r{number}")
        os.utime(folder, (number, number))
    listed = open_page("runs")
    overview = open_page("overview", "r0")
    compared = open_page("compare", runs="r1,r3")

    assert is_well(listed)
    assert sorted(names(listed)) == ["r2", "r3"]
    assert "has more runs than are listed here" in said(listed)
    assert is_well(overview)
    assert "r0" in next(box for box in overview.sidebar.selectbox if box.label == "Run").value
    assert is_well(compared)
    assert compared.multiselect(key="_compared").value == ["r1", "r3"]
