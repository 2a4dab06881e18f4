"""The runs of the list as a sweep: the answer above the charts, and every kind of log directory."""

from __future__ import annotations

import math
import re

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import ProjectSettings, write_project
from toolkit.telemetry.runs.sweep.next_trial import command_with


def write_sweep(logs, number=12, project=None, name="run", **more):
    """Write runs of which those with a higher rank have a lower validation loss."""
    for place in range(number):
        rank = (4, 16, 64)[place % 3]
        config = {
            "lora_rank": rank,
            "learning_rate": 10 ** -(2 + place % 5 / 2),
            "seed": place,
            "model": "tiny",
        }
        write_run(
            logs,
            f"{name}-{place:02d}",
            sessions=(range(3),),
            curves={"train_loss": lambda step: 1.0},
            start={"config": {**config, **more}},
            extra=[
                {
                    "event": "eval",
                    "time": 1.7e9,
                    "global_step": 2,
                    "val_loss": 0.2 - 0.02 * math.log2(rank) + 0.0001 * ((place * 7) % 11),
                    "accuracy": 0.5 + 0.01 * place,
                }
            ],
            status="running" if place == number - 1 else "finished",
            project=project,
        )


def sweep(**query):
    return open_page("runs", show="Sweep", **query)


def said(tab):
    """Return what the page says, without marks and addresses of links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", tab.said().replace("**", ""))


def charts_of(tab):
    """Return the figures of a sweep: the points, the bars."""
    found = [*tab.figures().values()]
    for one in found:
        # What is fitted through the points comes first.
        one["data"].sort(key=lambda trace: trace.get("mode") != "markers")
    return next((one for one in found if one["data"][0]["type"] == "scatter"), None), next(
        (one for one in found if one["data"][0]["type"] == "bar"), None
    )


def test_the_view_says_which_run_is_best_and_why(logs):
    write_sweep(logs, 16)
    tab = sweep()

    text = said(tab)
    assert "Best of 15 runs: run-" in text
    assert "with val_loss 0.08" in text
    assert "lora_rank explains the most" in text
    assert "1 still running" in text
    assert "Equal in all runs: model tiny" in text
    assert "Really better?" in text
    points, bars = charts_of(tab)
    [bar], [drawn, *fitted] = bars["data"], points["data"]
    assert fitted == [], "three values are too few for a curve"
    named = [name for name, look in zip(bar["y"], bar["marker"]["color"], strict=True) if "series" in look]
    assert [name.split()[0] for name in named] == ["lora_rank"]
    assert len(drawn["x"]) == 16
    titles = [points["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert titles == ["lora_rank", "val_loss"]
    assert drawn["marker"]["symbol"].count("star") == 1
    assert drawn["marker"]["symbol"].count("circle-open") == 1, "the one that is still running"
    assert drawn["customdata"][-1][0].startswith("overview?run=run-"), "a click opens the run"
    assert "template" not in points["layout"]
    table = tab.run_table()
    values = list(table["val_loss best"])
    assert table["href"][0] == f"overview?run={table['Run'][0]}"
    assert values[:-1] == sorted(values[:-1])


def test_metric_direction_and_search_come_from_the_link_and_else_from_the_project(logs):
    write_sweep(logs)
    tab = sweep(metric="accuracy", better="Higher is better", q="run-0")

    assert "Best of 10 runs: run-09, with accuracy 0.59" in said(tab)
    assert "run-10, with accuracy 0.6" in said(sweep(metric="accuracy")), "that higher is better is known"
    write_project(logs, None, ProjectSettings(primary_metric="accuracy", direction="max"))
    assert "run-10, with accuracy 0.6" in said(sweep())


def test_the_best_is_named_in_one_project_unless_the_runs_are_searched_for(logs):
    write_sweep(logs, 4, project="faces")
    write_sweep(logs, 2, project="style", name="other")

    assert "Best of 3 runs in project faces: run-02" in said(sweep())
    assert "2 runs of other projects or settings are left out" in said(sweep())
    assert "Best of 4 runs: run-02" in said(sweep(q="r"))


@pytest.mark.parametrize(
    ("x", "y", "first"),
    [
        ("learning_rate", "val_loss", (1e-4, 0.16)),
        ("accuracy (metric)", "val_loss", (0.5, 0.16)),
        ("duration in hours", "train_loss", None),
    ],
)
def test_settings_metrics_and_the_duration_can_be_axes(logs, x, y, first):
    write_sweep(logs)
    points, _ = charts_of(sweep(sx=x, sy=y, sc="lora_rank"))

    drawn, *_ = points["data"]
    found = min(zip(drawn["x"], drawn["y"], strict=True))
    assert len(drawn["x"]) == 12
    bar = drawn["marker"]["colorbar"]
    assert (bar["title"]["text"], bar["ticktext"]) == ("lora_rank", ["4", "16", "64"])
    assert first is None or found == pytest.approx(first, rel=0.6)


def test_the_last_value_is_asked_for_in_every_metric_of_the_scatter(logs):
    for number in range(3):
        evaluations = [
            {"event": "eval", "time": 1.7e9, "global_step": step, "val_loss": 1.0, "accuracy": value}
            for step, value in ((1, 0.9), (2, 0.1))
        ]
        write_run(logs, f"r{number}", start={"config": {"lr": 0.1 * (1 + number)}}, extra=evaluations)

    for take, value in (("Best value", 0.9), ("Last value", 0.1)):
        points, _ = charts_of(sweep(sx="learning_rate", sy="accuracy", metric="val_loss", take=take))
        assert set(points["data"][0]["y"]) == {value}


def test_parallel_coordinates_are_drawn_when_they_are_opened(logs):
    write_sweep(logs, lora_type="lora")
    tab = sweep(chart="All settings at once", axes="learning_rate")

    [(drawn,), _] = [figure["data"] for figure in tab.figures().values()]
    assert [axis["label"] for axis in drawn["dimensions"]] == ["learning_rate", "val_loss"]
    # By the order of the results: one that diverged does not make all others alike.
    assert sorted(drawn["line"]["color"]) == list(range(1, 13))
    axes = tab.multiselect(key="axes")
    assert axes.proto.query_param_key == "axes"
    assert set(axes.options) == {"learning_rate", "lora_rank"}


def test_a_setting_with_a_best_value_inside_has_a_curve_groups_and_a_command_to_copy(logs):
    for place in range(24):
        rate = 10 ** (-5 + place // 3 / 2)
        write_run(
            logs,
            f"run-{place:02d}",
            sessions=(range(3),),
            start={
                "config": {"learning_rate": rate, "seed": place % 3},
                "command_line": ["train.py", "--lr", f"{rate:g}", "--seed=1", "--name", "my run"],
            },
            extra=[
                {
                    "event": "eval",
                    "time": 1.7e9,
                    "global_step": 2,
                    "val_loss": 0.5 + (math.log10(rate) + 3.2) ** 2 / 4 + place % 3 / 1000,
                }
            ],
        )
    tab = sweep()

    points, _ = charts_of(tab)
    band, line = points["data"][1:]
    assert (band["fill"], line["line"]["dash"]) == ("toself", "dash")
    [command] = [item.value for item in tab.code]
    found = re.fullmatch(r"train.py --lr (\S+) --seed=1 --name 'my run'", command)
    assert float(found[1]) == pytest.approx(10**-3.2, rel=0.3)
    settings = next(table for table in tab.tables() if "val_loss mean" in table)
    assert settings["runs"].tolist() == [3] * 8
    assert settings["val_loss mean"].tolist() == sorted(settings["val_loss mean"])
    assert settings["learning_rate"][0] == "0.001"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["t.py", "--lr=1", "-x"], "t.py --lr=2 -x"),
        (["t.py", "train.lr=1"], "t.py train.lr=2"),
        (["t.py", "--learning-rate", "1"], "t.py --learning-rate 2"),
        (["t.py", "--lr"], None),
        (["t.py", "lr", "1"], None),
        (["t.py"], None),
    ],
)
def test_a_command_with_other_settings_names_each_of_them_or_is_left_out(line, said):
    assert command_with(line, {"learning_rate": "2"}) == said
