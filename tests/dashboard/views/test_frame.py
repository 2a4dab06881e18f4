"""The frame of a run's pages: its status, how far it is, which run, and regions that fail alone."""

from __future__ import annotations

import pytest
import streamlit as st

from tests.dashboard.views.pages import OF_A_RUN, open_page
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import Labels

SPEED = {"train_loss": lambda step: 1.0, "sec_per_step": lambda step: 0.5}


# ---------------------------------------------------------------- status


@pytest.mark.parametrize(
    ("status", "word", "can_be_asked"),
    [
        ("starting", "Starting", True),
        ("running", "Running", True),
        ("stalled", "Stalled 1 m", True),
        ("finished", "Finished", False),
        ("stopped", "Stopped", False),
        ("failed", "Failed", False),
        ("lost", "Lost", False),
    ],
)
def test_the_badge_says_how_the_run_is_doing_and_only_a_running_one_has_an_eta(
    logs, status, word, can_be_asked
):
    records = [] if status == "starting" else None
    control = {"actions": ["save"]}
    write_run(logs, "r", records, status=status, curves=SPEED, summary={"max_steps": 1099}, control=control)

    tab = open_page("overview", "r")

    assert any(badge.startswith(word) for badge in tab.badges()), tab.badges()
    assert ("ETA" in tab.said()) == (status == "running")
    assert ("step 99 / 1,099" in tab.said()) == (status != "starting")
    assert ("Save" in [item.label for item in tab.sidebar.button]) == can_be_asked
    assert can_be_asked or not tab.sidebar.caption


def test_a_run_on_another_machine_is_judged_by_age_and_the_page_says_so(logs):
    write_run(logs, "r", status="running", host="elsewhere", age_s=1_000)

    tab = open_page("overview", "r")

    assert "Lost" in tab.badges()
    assert "no sign of life from elsewhere" in tab.said()
    assert "estimated" in tab.said()
    assert open_page("runs").run_table()["Status"][0] == "✕ Lost ?"


def test_a_failed_run_says_why_and_whether_it_is_archived_next_to_its_tags(logs):
    write_run(logs, "r", status="failed", labels=Labels(archived=True), tags=("baseline", "bf16"))

    tab = open_page("overview", "r")

    assert "ValueError: no such file" in tab.said()
    assert {"Failed · archived", "baseline", "bf16"} <= set(tab.badges())


# ---------------------------------------------------------------- how far


def test_a_running_run_with_a_known_end_shows_when_it_ends(logs):
    write_run(logs, "r", status="running", curves=SPEED, summary={"max_steps": 1099})

    words = open_page("overview", "r").said()

    assert "step 99 / 1,099" in words
    assert "9%" in words
    assert "2 steps/s" in words
    # A part of a step has passed since the last one.
    assert "ETA 8 m 19 s" in words or "ETA 8 m 20 s" in words


def test_an_end_on_another_day_comes_with_its_date(logs):
    write_run(logs, "r", status="running", curves=SPEED, summary={"max_steps": 99 + 2 * 86_400 * 3 + 7200})

    words = open_page("overview", "r").said()

    assert "ETA 3 d" in words
    about = words.split("about ", 1)[1].split("\n", 1)[0]
    assert len(about) == len("2026-01-01 12:00"), about


@pytest.mark.parametrize(
    ("summary", "curves", "bar", "eta"),
    [
        ({}, SPEED, None, None),
        ({"max_steps": 50}, SPEED, 1.0, None),
        # Without a step time the clock gives it.
        ({"max_steps": 1099}, {"train_loss": float}, 99 / 1099, "ETA 8 m"),
    ],
)
def test_there_is_a_bar_with_a_known_end_and_an_eta_before_it(logs, summary, curves, bar, eta):
    write_run(logs, "r", status="running", curves=curves, summary=summary)

    tab = open_page("overview", "r")

    assert "step 99" in tab.said()
    assert tab.progress_shown() == (bar if bar is None else pytest.approx(bar, abs=0.01))
    assert eta in tab.said() if eta else "ETA" not in tab.said()


# ---------------------------------------------------------------- which run


@pytest.mark.parametrize("page", OF_A_RUN)
def test_an_unknown_run_brings_up_the_three_names_most_like_it(logs, page):
    for name in ("lora-1", "lora-2", "lora-3", "lora-4", "xyz"):
        write_run(logs, name)

    tab = open_page(page, "lora-5")

    assert "There is no run called 'lora-5'." in tab.said()
    near = [item.label.replace("\\", "") for item in tab.main.button]
    assert len(near) == 3
    assert all(name.startswith("lora-") for name in near)


def test_a_name_that_was_meant_opens_that_run(logs):
    write_run(logs, "lora-1")
    tab = open_page("overview", "lora-2")

    tab.button_called("lora\\-1").click().run()

    assert tab.query_params["run"] in ("lora-1", ["lora-1"])
    assert "Finished" in tab.badges()


def test_without_a_run_in_the_url_the_newest_is_shown(logs):
    write_run(logs, "old")
    write_run(logs, "new", status="running")

    tab = open_page("overview")

    assert tab.name_shown() == "new"


def test_two_log_directories_may_hold_runs_of_one_name(tmp_path, look_at):
    write_run(tmp_path / "one", "r", display_name="first")
    write_run(tmp_path / "two", "r", display_name="second")
    look_at(tmp_path / "one", tmp_path / "two")

    assert sorted(open_page("runs").run_table()["Run"]) == ["first", "second"]
    assert open_page("overview", "two~r").name_shown() == "second"

    write_run(tmp_path / "two", "alone")
    for address in ("alone", "5~alone", "two~alone"):
        assert open_page("overview", address).name_shown() == "alone"
    both = open_page("overview", "r")
    assert "2 places have a run called 'r'." in both.said()
    assert {button.label for button in both.button if button.key and button.key.startswith("_near")} == {
        "first",
        "second",
    }
    compared = open_page("compare", runs="two~r,5~alone")
    assert compared.multiselect(key="_compared").value == ["two~r", "alone"]


def test_epochs_are_no_axis_of_a_run_without_them(logs):
    write_run(logs, "r")
    tab = open_page("overview", "r", x="Epoch")

    labels = [label for value, label in tab.switches()["axes"] if not value.startswith("metric:")]
    assert labels == ["Step", "Time", "Relative time", "Progress in %"]
    assert tab.switches()["view"]["axis"] == "step"
    assert tab.charts() >= 1


# ---------------------------------------------------------------- a region that fails


@pytest.mark.parametrize(
    ("page", "broken", "region", "still_there"),
    [
        ("overview", "store.means", "The summary", "Loss"),
        ("overview", "store.events", "The charts", "Pins"),
        ("alerts", "store.events", "The alerts", "Severity"),
        ("machine", "store.count_events", "The timeline", "Settings"),
        ("machine", "store.ranks", "The ranks", "All events"),
        ("samples", "store.events", "The samples", "search prompts"),
        ("config_notes", "to_yaml", "The configuration", "Sessions"),
        ("compare", "store.series_of", "The table", "Difference"),
        ("runs", "store.trends", "The list", "tag:baseline"),
    ],
)
def test_a_region_that_fails_says_so_and_the_others_live_on(
    logs, monkeypatch, page, broken, region, still_there
):
    def fail(*args, **kwargs):
        raise RuntimeError("broken on purpose")

    write_run(logs, "r", extra=[{"event": "sample", "time": 1.7e9, "path": "s.png", "global_step": 1}])
    write_run(logs, "s")
    where = {
        "to_yaml": "dashboard.views.config_notes",
        "short_number": "toolkit.telemetry.runs.formatting",
    }.get(broken, "toolkit.telemetry.runs.sources.local_store.LocalStore")
    tab = open_page("runs", "r", runs="r,s", may_break=True) if page != "runs" else None
    monkeypatch.setattr(f"{where}.{broken.removeprefix('store.')}", fail)

    tab = open_page("runs", may_break=True) if tab is None else tab.go_to(page)

    assert not tab.exception, tab.exception[0].message
    assert f"{region} could not be drawn. The rest of the page still works." in tab.said()
    assert any("broken on purpose" in code.value for code in tab.code)
    assert still_there in tab.said()


@pytest.mark.parametrize("event", ["sample", "completion", "histogram", None])
def test_the_menu_is_short_and_has_samples_only_for_a_run_with_some(logs, monkeypatch, event):
    shown, navigation = [], st.navigation

    def look(pages, **options):
        shown[:] = [page.title for some in pages.values() for page in some if page.visibility == "visible"]
        return navigation(pages, **options)

    write_run(logs, "r", extra=[] if event is None else [{"event": event, "time": 1.7e9, "global_step": 1}])
    monkeypatch.setattr(st, "navigation", look)

    assert open_page("overview", "r").is_well()
    assert ("Samples" in shown) is (event is not None)
    assert len(shown) <= 8
