"""The frame of a run's pages: its status, how far it is, which run, and regions that fail alone."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("streamlit")

import streamlit as st

from dashboard.components import curve_panel
from tests.dashboard.views.pages import (
    OF_A_RUN,
    badges,
    button,
    cards,
    charts,
    go_to,
    is_well,
    name_shown,
    open_page,
    progress_shown,
    run_table,
    said,
    switches,
)
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import Labels

SPEED = {"train_loss": lambda step: 1.0, "sec_per_step": lambda step: 0.5}


# ---------------------------------------------------------------- status


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("starting", "Starting"),
        ("running", "Running"),
        ("stalled", "Stalled 1 m"),
        ("finished", "Finished"),
        ("stopped", "Stopped"),
        ("failed", "Failed"),
        ("lost", "Lost"),
    ],
)
def test_the_badge_says_how_the_run_is_doing(logs, status, word):
    write_run(logs, "r", [] if status == "starting" else None, status=status)

    tab = open_page("overview", "r")

    assert any(badge.startswith(word) for badge in badges(tab)), badges(tab)


def test_a_run_on_another_machine_is_judged_by_age_and_the_page_says_so(logs):
    write_run(logs, "r", status="running", host="elsewhere", age_s=1_000)

    tab = open_page("overview", "r")

    assert "Lost" in badges(tab)
    assert "no sign of life from elsewhere" in said(tab)
    assert "estimated" in said(tab)
    assert run_table(open_page("runs"))["Status"][0] == "✕ Lost ?"


def test_a_failed_run_says_why_and_whether_it_is_archived_next_to_its_tags(logs):
    write_run(logs, "r", status="failed", labels=Labels(archived=True), tags=("baseline", "bf16"))

    tab = open_page("overview", "r")

    assert "ValueError: no such file" in said(tab)
    assert {"Failed · archived", "baseline", "bf16"} <= set(badges(tab))


# ---------------------------------------------------------------- how far


def test_a_running_run_with_a_known_end_shows_when_it_ends(logs):
    write_run(logs, "r", status="running", curves=SPEED, summary={"max_steps": 1099})

    words = said(open_page("overview", "r"))

    assert "step 99 / 1,099" in words
    assert "9%" in words
    assert "2 steps/s" in words
    # A part of a step has passed since the last one.
    assert "ETA 8 m 19 s" in words or "ETA 8 m 20 s" in words


def test_an_end_on_another_day_comes_with_its_date(logs):
    write_run(logs, "r", status="running", curves=SPEED, summary={"max_steps": 99 + 2 * 86_400 * 3 + 7200})

    words = said(open_page("overview", "r"))

    assert "ETA 3 d" in words
    about = words.split("about ", 1)[1].split("\n", 1)[0]
    assert len(about) == len("2026-01-01 12:00"), about


@pytest.mark.parametrize("status", ["stalled", "finished", "failed", "lost", "stopped"])
def test_a_run_that_is_not_running_has_no_eta(logs, status):
    write_run(logs, "r", status=status, curves=SPEED, summary={"max_steps": 1099})

    words = said(open_page("overview", "r"))

    assert "step 99 / 1,099" in words
    assert "ETA" not in words


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

    assert "step 99" in said(tab)
    assert progress_shown(tab) == (bar if bar is None else pytest.approx(bar, abs=0.01))
    assert eta in said(tab) if eta else "ETA" not in said(tab)


# ---------------------------------------------------------------- which run


@pytest.mark.parametrize("page", OF_A_RUN)
def test_an_unknown_run_brings_up_the_three_names_most_like_it(logs, page):
    for name in ("lora-1", "lora-2", "lora-3", "lora-4", "xyz"):
        write_run(logs, name)

    tab = open_page(page, "lora-5")

    assert is_well(tab)
    assert "There is no run called 'lora-5'." in said(tab)
    near = [item.label.replace("\\", "") for item in tab.main.button]
    assert len(near) == 3
    assert all(name.startswith("lora-") for name in near)


def test_a_name_that_was_meant_opens_that_run(logs):
    write_run(logs, "lora-1")
    tab = open_page("overview", "lora-2")

    button(tab, "lora\\-1").click().run()

    assert tab.query_params["run"] in ("lora-1", ["lora-1"])
    assert "Finished" in badges(tab)


def test_without_a_run_in_the_url_the_newest_is_shown(logs):
    write_run(logs, "old")
    write_run(logs, "new", status="running")

    tab = open_page("overview")

    assert name_shown(tab) == "new"


def test_two_log_directories_may_hold_runs_of_one_name(tmp_path, look_at):
    write_run(tmp_path / "one", "r", display_name="first")
    write_run(tmp_path / "two", "r", display_name="second")
    look_at(tmp_path / "one", tmp_path / "two")

    assert sorted(run_table(open_page("runs"))["Run"]) == ["first", "second"]
    assert name_shown(open_page("overview", "two~r")) == "second"

    write_run(tmp_path / "two", "alone")
    for address in ("alone", "5~alone", "two~alone"):
        assert name_shown(open_page("overview", address)) == "alone"
    both = open_page("overview", "r")
    assert "2 places have a run called 'r'." in said(both)
    assert {button.label for button in both.button if button.key and button.key.startswith("_near")} == {
        "first",
        "second",
    }
    compared = open_page("compare", runs="two~r,5~alone")
    assert compared.multiselect(key="_compared").value == ["two~r", "alone"]


@pytest.mark.parametrize("axis", ["Step", "Time", "Epoch"])
def test_charts_can_run_along_any_axis(logs, axis):
    write_run(
        logs, "r", sessions=(range(50), range(40, 90)), curves={**SPEED, "epoch": lambda step: step / 10}
    )
    tab = open_page("overview", "r", x=axis)

    assert is_well(tab)
    assert switches(tab)["view"]["axis"] == axis.lower()
    assert charts(tab) >= 1


def test_epochs_are_no_axis_of_a_run_without_them(logs):
    write_run(logs, "r")
    tab = open_page("overview", "r", x="Epoch")

    assert is_well(tab)
    labels = [label for value, label in switches(tab)["axes"] if not value.startswith("metric:")]
    assert labels == ["Step", "Time", "Relative time", "Progress in %"]
    assert switches(tab)["view"]["axis"] == "step"
    assert charts(tab) >= 1


# ---------------------------------------------------------------- a region that fails


def test_a_chart_that_cannot_be_drawn_takes_nothing_else_along(logs, monkeypatch):
    write_run(logs, "r", curves={"train_loss": lambda step: 1.0, "lr": lambda step: 1e-4, "grad_norm": float})
    real = curve_panel.draw_curves

    def broken(spec, **more):
        if spec.curves[0].metric == "lr":
            raise RuntimeError("no ink <left>")
        real(spec, **more)

    monkeypatch.setattr(curve_panel, "draw_curves", broken)

    tab = open_page("overview", "r")

    assert not tab.exception
    assert [error.value for error in tab.error] == [
        "Learning rate could not be drawn. The rest of the page still works."
    ]
    assert any("no ink <left>" in code.value for code in tab.code), "the traceback is there to copy"
    assert charts(tab) == 2
    assert "Train loss" in cards(tab)
    assert "102 records" in said(tab), "what comes after the broken chart"


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
    tab = open_page("runs", "r", runs="r,s") if page != "runs" else None
    monkeypatch.setattr(f"{where}.{broken.removeprefix('store.')}", fail)

    tab = open_page("runs") if tab is None else go_to(tab, page)

    assert not tab.exception, tab.exception[0].message
    assert f"{region} could not be drawn. The rest of the page still works." in said(tab)
    assert any("broken on purpose" in code.value for code in tab.code)
    assert still_there in said(tab)


@pytest.mark.parametrize("event", ["sample", "completion", "histogram", None])
def test_the_menu_is_short_and_has_samples_only_for_a_run_with_some(logs, monkeypatch, event):
    shown, navigation = [], st.navigation

    def look(pages, **options):
        shown[:] = [page.title for some in pages.values() for page in some if page.visibility == "visible"]
        return navigation(pages, **options)

    write_run(logs, "r", extra=[] if event is None else [{"event": event, "time": 1.7e9, "global_step": 1}])
    monkeypatch.setattr(st, "navigation", look)

    assert is_well(open_page("overview", "r"))
    assert ("Samples" in shown) is (event is not None)
    assert len(shown) <= 8


def test_a_run_deleted_on_disk_is_gone_with_the_next_refresh(logs):
    folder = write_run(logs, "r")
    tab = open_page("overview", "r")
    shutil.rmtree(folder)

    assert "There is no run called 'r'." in said(tab.run())
