"""Named views: what is kept, what a chart of one's own draws, and files with anything in them."""

from __future__ import annotations

from toolkit.telemetry.runfolder.labels import ProjectSettings, read_project, write_project
from toolkit.telemetry.runs.listing.views import NamedView, OwnChart, views_of, with_view, without_view


def test_a_view_is_kept_with_the_runs_and_read_back(tmp_path):
    chart = OwnChart(title="Losses", metrics=("loss/*", "= lr * 2"), axis="metric:tokens")
    view = NamedView(name="Mine", charts=(chart,), columns=("name", "= step"), search="lr>1", sort="-= step")
    write_project(tmp_path, "p", with_view(ProjectSettings(), view))

    settings = read_project(tmp_path, "p")
    assert views_of(settings) == {"Mine": view}
    assert views_of(without_view(settings, "Mine")) == {}


def test_what_is_invalid_is_left_out_and_what_is_newer_is_kept():
    odd = {"charts": [{"metrics": []}, {"metrics": ["a", 3], "title": 5, "x": 1}, 7], "columns": 3, "new": 1}
    settings = ProjectSettings(views={"v": odd, "": {}, "x" * 200: {}})

    (view,) = views_of(settings).values()
    assert view == NamedView(name="v", charts=(OwnChart(title="a", metrics=("a",)),), other={"new": 1})
    assert with_view(settings, view).views["v"] == {"charts": [{"title": "a", "metrics": ["a"]}], "new": 1}
