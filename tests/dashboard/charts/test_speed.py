"""One row a job, in the order of the groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboard.charts.speed import speed_figure, speed_height
from tests.dashboard.step_times import group, step_times


def test_each_job_has_a_row_a_median_and_a_spread():
    groups = [group("old", [step_times(1), step_times(2)]), group("new", [step_times(3, seconds=0.6)])]

    figure = speed_figure(groups)

    old, new = figure["data"]
    assert (old["y"], new["y"]) == ([0, -1], [-2])
    assert old["x"] == [job.median for job in groups[0].jobs]
    assert all(reach > 0 for trace in figure["data"] for reach in trace["error_x"]["array"])
    assert all(reach > 0 for trace in figure["data"] for reach in trace["error_x"]["arrayminus"])
    assert [note["y"] for note in figure["layout"]["annotations"]] == [0, -1, -2]
    assert figure["layout"]["annotations"][2]["text"] == "<b>new</b>  new · session 1"


def test_groups_differ_in_symbol_as_well_as_in_colour():
    figure = speed_figure([group("a", [step_times(1)]), group("b", [step_times(2)])])

    symbols = [trace["marker"]["symbol"][0] for trace in figure["data"]]
    colors = [trace["marker"]["color"] for trace in figure["data"]]
    assert len(set(symbols)) == len(set(colors)) == 2


def test_a_job_that_was_too_short_is_an_empty_point():
    figure = speed_figure([group("a", [step_times(1), step_times(2, 15)])])

    assert figure["data"][0]["marker"]["symbol"] == ["circle", "circle-open"]


def test_jobs_that_all_took_the_same_have_an_axis_around_it():
    equal = group("a", [step_times(1), step_times(2)])
    jobs = [replace(job, p10=0.002, median=0.002, p90=0.002) for job in equal.jobs]

    assert speed_figure([replace(equal, jobs=jobs)])["layout"]["xaxis"]["range"] == pytest.approx(
        [0.0016, 0.0024]
    )
    assert "range" not in speed_figure([equal])["layout"]["xaxis"]


def test_more_jobs_get_more_room():
    one, three = group("a", [step_times(1)]), group("b", [step_times(n) for n in range(3)])

    assert speed_height([one]) < speed_height([three])
