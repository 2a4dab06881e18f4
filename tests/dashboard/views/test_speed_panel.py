"""Jobs by perf_tag on the Compare page: which is slower, by how much, and what that is known from."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.manifest import read_manifest, write_manifest


def write_jobs(root, name, seconds, *, perf_tags=(), session_tags=(), began=1.7e9, **metrics):
    """Write a run with one session for each of `seconds`, the time its steps take."""
    count = 120
    noise = np.random.default_rng(len(name) + int(began) % 97).normal(size=count * len(seconds))
    folder = write_run(
        root,
        name,
        sessions=[range(number * count, (number + 1) * count) for number in range(len(seconds))],
        curves={
            "train_loss": lambda step: 1.0,
            "sec_per_step": list(np.repeat(seconds, count) * np.exp(0.03 * noise)),
            **metrics,
        },
        began=began,
    )
    manifest = read_manifest(folder)
    sessions = tuple(
        replace(
            session,
            perf_tag=perf_tags[number] if number < len(perf_tags) else None,
            session_tag=session_tags[number] if number < len(session_tags) else None,
        )
        for number, session in enumerate(manifest.sessions)
    )
    write_manifest(folder, replace(manifest, sessions=sessions))
    return folder


def table(tab):
    return next(frame for frame in tab.tables() if "perf_tag" in frame.columns)


def test_a_slower_tag_is_reported_as_slower_than_the_one_before_and_both_as_they_are(logs):
    old, new = "<b>*x*</b>", "[y](http://example.org)"
    write_jobs(logs, "old", [0.5], perf_tags=[old], began=1.7e9)
    write_jobs(logs, "new", [0.6], perf_tags=[new], began=1.8e9)

    tab = open_page("compare", speed="true", runs="new,old")

    slower = (
        rf"{re.escape(new)} is (19|20|21) % slower than {re.escape(old)} \(95 % interval .*, 1 job vs 1\)"
    )
    assert re.search(slower, tab.said())
    assert "the variation between equal jobs is unknown" in tab.said()
    assert set(table(tab)["perf_tag"]) == {old, new}


def test_every_job_has_a_row_in_the_chart_and_in_the_table(logs):
    write_jobs(logs, "old", [0.5, 0.51], perf_tags=["tag-a"] * 2)
    write_jobs(
        logs,
        "new",
        [0.6],
        perf_tags=["tag-b"],
        began=1.8e9,
        samples_per_sec=lambda step: 8.0,
        **{"ledger/training": lambda step: 0.3, "ledger/data_wait": lambda step: 0.1},
    )

    tab = open_page("compare", speed="true", runs="old,new")

    rows = table(tab).set_index("job")
    assert list(rows.index) == ["old · session 1", "old · session 2", "new · session 1"]
    assert rows.loc["new · session 1", "data wait"] == "25 %"
    assert rows.loc["new · session 1", "samples / s"] == "8"
    assert rows.loc["old · session 1", "steps"] == "120"
    assert list(rows["median"]).index(1.0) == list(rows["median"]).index(rows["median"].max()), (
        "the longest bar"
    )


def test_one_run_that_changed_its_tag_on_the_way_can_be_compared_with_itself(logs):
    write_jobs(logs, "r", [0.8, 0.5], perf_tags=["loop", "no-loop"], session_tags=["night", "night"])

    tab = open_page("compare", speed="true", runs="r")

    assert "faster than loop" in tab.said()
    assert list(table(tab)["session_tag"]) == ["night", "night"]


def test_the_baseline_can_be_chosen(logs):
    for number, seconds in enumerate((0.5, 0.6, 0.55)):
        write_jobs(logs, f"r{number}", [seconds], perf_tags=[f"tag-{number}"], began=1.7e9 + 1000 * number)
    tab = open_page("compare", speed="true", runs="r0,r1,r2")

    assert "faster than tag-1" in tab.said()

    tab.selectbox(key="_speed_base tag tag-2").set_value("tag tag-0").run()

    assert "slower than tag-0" in tab.said()

    tab.selectbox(key="_speed_of").set_value("tag tag-0").run()

    assert "tag-0 is" in tab.said()
    assert "faster than tag-1" in tab.said()

    # What was chosen may go with the run that had it.
    tab.multiselect[0].set_value(["r1", "r2"]).run()

    assert "tag-2 is" in tab.said()


def test_runs_without_a_tag_are_groups_of_their_own_and_the_page_says_how_to_set_one(logs):
    write_jobs(logs, "first", [0.5, 0.5])
    write_jobs(logs, "second", [0.5], began=1.8e9)

    tab = open_page("compare", speed="true", runs="first,second")

    assert "No significant difference: second is between" in tab.said()
    assert "1 job vs 2" in tab.said()
    assert "telemetry: {perf_tag: my-change}" in tab.said()


def test_other_batch_sizes_are_compared_by_the_sample(logs):
    write_jobs(logs, "small", [0.5], perf_tags=["small"], samples_per_sec=lambda step: 8.0)
    write_jobs(logs, "large", [1.0], perf_tags=["large"], began=1.8e9, samples_per_sec=lambda step: 8.0)

    tab = open_page("compare", speed="true", runs="small,large")

    assert "compares the time per sample, not per step" in tab.said()
    assert "No significant difference" in tab.said()


def test_a_job_that_is_too_short_is_shown_and_not_judged(logs):
    write_run(logs, "short", curves={"sec_per_step": lambda step: 0.5}, sessions=(range(12),))
    write_jobs(logs, "long", [0.5], began=1.8e9)

    tab = open_page("compare", speed="true", runs="short,long")

    assert "too short to compare" in tab.said()
    assert len(table(tab)) == 2
    assert sorted(table(tab)["job"]) == ["long · session 1", "short · session 1 (too short to compare)"]
