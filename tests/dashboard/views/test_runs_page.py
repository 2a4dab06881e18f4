"""The list of runs: found, filtered, sorted, picked."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder.labels import (
    Labels,
    read_labels,
    read_project,
    write_labels,
    write_project,
)
from toolkit.telemetry.runs.listing.run_folders import RunFolders


def names(tab):
    return list(tab.run_table()["Run"])


@pytest.fixture
def five(logs):
    write_run(
        logs,
        "lora-a",
        tags=("baseline",),
        # The last learning rate is not the configured one.
        summary={"train_loss": 0.5, "max_steps": 99, "lr": 1e-8},
        start={"learning_rate": 1e-3, "max_steps": 99},
    )
    write_run(logs, "lora-b", status="failed", summary={"train_loss": 0.1, "max_steps": 990})
    write_run(logs, "full-c", status="running", summary={"train_loss": 2.0})
    write_run(logs, "full-d", status="lost", host="elsewhere", labels=Labels(tags=("baseline", "x y")))
    write_run(logs, "old", labels=Labels(archived=True))
    return logs


def test_every_run_is_listed_with_status_and_progress(five):
    table = open_page("runs").run_table().set_index("Run")

    assert table.index[0] == "full-c", "the last sign of life sorts without being asked"
    assert sorted(table.index) == ["full-c", "full-d", "lora-a", "lora-b"]
    assert table["Status"]["lora-a"] == "■ Finished"
    assert table["Status"]["lora-b"] == "✕ Failed"
    assert table["Status"]["full-c"] == "● Running"
    assert table["Progress"]["lora-a"] == "100 %", "a bar is for runs that go on"
    assert table["Progress"]["lora-b"] == "10 %"
    assert table["Loss (last)"]["lora-b"] == "0.1"


def test_findings_that_go_on_are_counted_in_the_list(logs):
    write_run(logs, "bad", status="running", summary={"findings_critical": 1, "findings_warning": 3})
    write_run(logs, "odd", status="running", summary={"findings_critical": "many", "findings_warning": None})
    write_run(logs, "good", status="running")
    table = open_page("runs").run_table().set_index("Run")

    assert table["Alerts"]["bad"] == "✕ 1  ▲ 3"
    assert table["Alerts"]["odd"] == ""
    assert table["Alerts"]["good"] == ""


@pytest.mark.parametrize(
    ("query", "found"),
    [
        # tests/runs/listing/test_run_search.py has every kind of search.
        ('tag:"x y"', {"full-d"}),
        ("lr>1e-4", {"lora-a"}),
        ("nothing-like-this", set()),
    ],
)
def test_the_search_box_finds(five, query, found):
    tab = open_page("runs", q=query)

    assert set(names(tab)) == found
    assert bool(found) != ("No runs match." in tab.said())


@pytest.mark.parametrize("query", ["colour:red", "x" * 3000])
def test_a_search_that_means_nothing_is_explained_and_hides_no_run(five, query):
    tab = open_page("runs", q=query)

    assert len(tab.warning) == 1
    assert len(names(tab)) == 4


def test_the_search_box_and_pills_filter(five):
    tab = open_page("runs")
    tab.text_input(key="q").set_value("tag:baseline").run()

    assert set(names(tab)) == {"lora-a", "full-d"}

    tab.text_input(key="q").set_value("").run()
    pills = _status_pills(tab)
    assert "1 failed" in tab.said()

    pills.set_value(["failed"]).run()

    assert names(tab) == ["lora-b"]


def test_a_link_holds_a_status_whatever_its_count_and_an_unknown_one_is_said(five):
    # What a link holds is what the pills are called.
    called = [option.content for option in _status_pills(open_page("runs")).proto.options]
    assert called == ["Running", "Finished", "Failed", "Lost"]
    assert names(open_page("runs", status="Failed")) == ["lora-b"]
    assert names(open_page("runs", status="Stalled")) == []
    tab = open_page("runs", status="Failed 4")
    assert len(names(tab)) == 4
    assert "Failed 4" in tab.toast[0].value


def _status_pills(tab):
    return next(item for item in tab.get("button_group") if item.key == "status")


def links(tab):
    """Return the query of each link to another page, by its label."""
    return {item.proto.label: item.proto.query_string for item in tab.get("page_link")}


def test_nothing_can_be_done_before_a_row_is_picked_and_one_can_be_opened(five):
    tab = open_page("runs")

    assert not links(tab)
    assert not {"Tag…", "Archive", "Delete"} & {item.label for item in tab.button}
    assert links(tab.pick_runs("lora-b")) == {"Open": "run=lora-b"}


def test_two_picked_runs_can_be_compared(five):
    tab = open_page("runs").pick_runs("lora-a", "lora-b")
    (label, query), *others = links(tab).items()
    compared = open_page("compare", None, **dict(parse_qsl(query)))

    assert (label, others) == ("Compare 2", [])
    assert sorted(compared.multiselect(key="_compared").value) == ["lora-a", "lora-b"]


def drawn(tab):
    """Return the runs whose curves are next to the list, and those whose eyes are open in it."""
    [data] = tab.sent("selectable")
    [large, *_] = tab.curve_charts()
    eyes = [row["key"] for row in data["rows"] if row["hidden"] is False]
    return sorted(curve["run"] for curve in large["curves"]), sorted(eyes)


def test_the_curves_of_the_first_runs_are_next_to_the_list_until_runs_are_picked(logs):
    for number in range(13):
        write_run(logs, f"r{number:02d}", curves={"train_loss": [1.0] * 100, "lr": [0.1] * 100})
    every = [f"r{number:02d}" for number in range(13)]
    tab = open_page("runs", show="Charts", sort="name", metric="lr")

    assert drawn(tab) == (every[:10], every[:10])
    assert [chart["title"] for chart in tab.curve_charts()] == ["lr", "train_loss"]
    assert drawn(tab.pick_runs("r03", "r12")) == (["r03", "r12"], ["r03", "r12"])
    shown = open_page("runs", show="Charts", sort="name", hide=("r00", "r01"), draw=("r11",))
    assert drawn(shown)[0] == [*every[2:10], "r11"], "as the eyes of a link have it"
    alone = open_page("runs", show="Charts", sort="name", hide=tuple(every[:10]))
    assert not alone.curve_charts()
    assert "Every curve is hidden" in alone.said()


def test_the_charts_open_with_the_metric_by_which_the_list_compares(logs):
    for number in range(15):
        more = {"val_loss": [1.0] * 100} if number < 5 else {}
        write_run(logs, f"r{number:02d}", curves={"train_loss": [1.0] * 100, **more})
    tab = open_page("runs", show="Charts", sort="name")

    assert "train_loss best" in tab.run_table()
    assert tab.curve_charts()[0]["title"] == "train_loss"


def test_charts_stay_next_to_the_list_when_one_comes_back_to_it(five):
    tab = open_page("runs", show="Charts")
    tab.go_to("overview")
    assert tab.go_to("runs").curve_charts()


def test_picked_runs_are_archived_together(five):
    tab = open_page("runs").pick_runs("lora-a", "lora-b")

    tab.button_called("Archive").click().run()

    assert read_labels(five / "lora-a").archived
    assert read_labels(five / "lora-b").archived
    assert sorted(names(open_page("runs"))) == ["full-c", "full-d"]


def test_picked_runs_get_a_tag_besides_their_own(five):
    tab = open_page("runs").pick_runs("lora-a", "lora-b")
    tab.session_state["_new_tags"] = ["x y"]
    tab.button_called("Tag…").click().run()

    tab.press_in_dialog(tab.button_called("Tag…").click, "Add")

    assert read_labels(five / "lora-a").tags == ("baseline", "x y")
    assert read_labels(five / "lora-b").tags == ("x y",)


def test_links_and_files_in_the_folder_of_the_runs_are_skipped_and_reported(five, tmp_path):
    (five / "link").symlink_to(tmp_path)
    (five / "notes.txt").write_text("hello")
    (five / "empty").mkdir()

    tab = open_page("runs")

    assert len(names(tab)) == 4
    assert "link is a symbolic link and is not followed" in tab.said()


@pytest.fixture
def _every_call_looks(monkeypatch):
    """ChartStyle at the folder each time: a test changes it quickly, and a slow look would put off the next."""
    scan = RunFolders.scan
    monkeypatch.setattr(RunFolders, "scan", lambda folders, *, again=False: scan(folders, again=True))


@pytest.mark.usefixtures("_every_call_looks")
@pytest.mark.parametrize("vanishes", [0, 1])
def test_a_selection_stays_with_its_run_when_others_vanish_and_goes_with_it(logs, vanishes):
    for name in ("a", "b", "c"):
        write_run(logs, name)
    tab = open_page("runs")
    shown = names(tab)
    tab.pick_runs(shown[1])
    write_labels(logs / shown[vanishes], Labels(archived=True))

    tab.run()

    assert ("1 selected" in tab.said().replace("**", "")) is (vanishes == 0)
    assert ("selected" in tab.said()) is (shown[1] in names(tab))


def test_several_projects_can_be_looked_at_one_by_one(logs):
    for name, project in (("a", "faces"), ("b", "faces"), ("c", "cars"), ("d", None)):
        write_run(logs, name, project=project)
    tab = open_page("runs")

    assert len(names(tab)) == 4

    tab.selectbox(key="project").set_value("faces").run()

    assert sorted(names(tab)) == ["a", "b"]
    assert "2 of 4 runs" in tab.said()
    assert sorted(names(open_page("runs", project="cars"))) == ["c"]


@pytest.mark.usefixtures("_every_call_looks")
def test_a_long_list_is_searched_and_sorted_as_a_whole_and_shown_in_parts(logs):
    for number in range(120):
        (logs / f"r{number:03d}").mkdir()
        append(logs / f"r{number:03d}", [step_record(number)])
    every = [f"r{number:03d}" for number in range(120)]

    tab = open_page("runs", sort="-name")

    assert names(tab) == every[:19:-1]
    assert "120 of 120 runs" in tab.said()

    asked, _ = tab.session_state["_runs_rows"]
    tab.session_state["_runs_rows"] = (asked, 300)
    tab.run()

    assert names(tab) == every[::-1]

    tab.text_input(key="q").set_value("-r11").run()

    assert names(tab) == every[109:9:-1]
    assert "110 of 120 runs" in tab.said()


@pytest.fixture
def sweep(logs):
    for lr in (1e-4, 1e-3):
        for seed in (1, 2):
            name = f"lr{lr:g}-s{seed}"
            start = {"learning_rate": lr, "seed": seed, "optimizer": "adamw", "max_steps": 99}
            loss = {"event": "eval", "session": 1, "global_step": 50, "val_loss": lr * 1000 + seed / 10}
            write_run(logs, name, start=start, extra=[loss])
    return logs


def test_the_table_has_what_differs_and_how_good_each_run_is(sweep):
    tab = open_page("runs")
    table = tab.run_table().set_index("Run")

    assert table.loc["lr0.0001-s2", ["val_loss best", "val_loss last", "learning_rate", "seed"]].tolist() == [
        *("0.3", "0.3", "1e-4", "2")
    ]
    assert "optimizer" not in table.columns
    assert "Best: lr0.0001-s1, lowest val_loss 0.2" in tab.said()


def test_an_unknown_name_is_explained_with_the_nearest_and_names_are_offered(sweep):
    tab = open_page("runs", q="val_los<1")

    assert "did you mean val_loss" in tab.said()

    tab.text_input(key="q").set_value("opt").run()
    pills = next(item for item in tab.get("button_group") if (item.key or "").startswith("_names"))
    pills.set_value("optimizer").run()

    assert tab.text_input(key="q").value == "optimizer"


def test_the_order_of_a_column_stays_in_the_address(sweep):
    tab = open_page("runs", sort="config:seed")

    assert [name[-1] for name in names(tab)] == ["1", "1", "2", "2"]
    assert "config:seed" in tab.query_params["sort"]


def test_columns_are_chosen_in_the_address_and_kept_for_the_project(sweep):
    tab = open_page("runs", cols="seed~config:optimizer!~name~best:val_loss")

    assert [*tab.run_table().columns[:3]] == ["Run", "optimizer", "val_loss best"]

    tab.button_called("Keep for the project").click().run()

    assert [*open_page("runs").run_table().columns[:3]] == ["Run", "optimizer", "val_loss best"]
    assert read_project(sweep, None).columns == ("config:optimizer!", "name", "best:val_loss")


def test_a_column_has_the_forecasts_of_live_runs_if_it_is_chosen(logs):
    for name in ("a", "b", "c", "d"):
        write_run(logs, name, status="running", summary={"max_steps": 200})
    write_run(logs, "over")

    assert "Forecast" not in open_page("runs").run_table().columns
    table = open_page("runs", cols="name~forecast").run_table().set_index("Run")["Forecast"]
    # A few in one refresh.
    assert sorted(" to " in cell for cell in table) == [False, False, True, True, True]
    assert table["over"] == ""


def test_a_formula_is_a_column_that_sorts_and_a_view_keeps_the_list(sweep):
    formula = "= best(val_loss) * 2"
    tab = open_page("runs", cols="name~seed", sort="-best:val_loss")
    tab.text_input(key="_columns_formula 0").set_value("best(val_los)").run()
    assert "did you mean val_loss?" in tab.said() or "use min() or max()" in tab.said()
    tab.text_input(key="_columns_formula 0").set_value(formula).run()
    assert [*tab.run_table().columns[:2]] == ["Run", "best(val_loss) * 2"]
    tab.text_input(key="_view_name").set_value("Doubled").run()
    tab.button_called("Keep view").click().run()

    tab = open_page("runs")
    assert "best(val_loss) * 2" not in tab.run_table().columns
    tab.selectbox(key="_pick_view ").set_value("Doubled").run()
    assert [*tab.run_table().columns[:2]] == ["Run", "best(val_loss) * 2"]
    assert "Doubled" in tab.query_params["view"]
    assert [*open_page("runs", view="Doubled").run_table().columns[:2]] == ["Run", "best(val_loss) * 2"]
    assert formula in open_page("runs", sort=formula, cols=f"name~{formula}").query_params["sort"]


def test_the_primary_metric_is_chosen_for_the_project(sweep):
    tab = open_page("runs")

    tab.selectbox(key="_primary val_loss").set_value("train_loss").run()

    assert read_project(sweep, None).primary_metric == "train_loss"
    assert "train_loss best" in open_page("runs").run_table().columns


def test_runs_are_grouped_by_a_setting(sweep):
    table = open_page("runs", group="learning_rate").run_table()

    assert table["learning_rate"].tolist() == ["1e-4", "0.001"]
    assert table["Runs"].tolist() == ["2", "2"]
    assert table["val_loss mean"].tolist() == ["0.25", "1.15"]
    assert table["Best run"].tolist() == ["lr0.0001-s1", "lr0.001-s1"]


def test_deleted_runs_come_back_with_undo(sweep):
    tab = open_page("runs").pick_runs("lr0.0001-s1", "lr0.001-s1")

    tab.button_called("Delete").click().run()

    assert sorted(names(tab)) == ["lr0.0001-s2", "lr0.001-s2"]

    tab.button_called("Undo").click().run()

    assert len(names(open_page("runs"))) == 4


def test_a_run_keeps_the_colour_that_was_chosen(sweep):
    write_labels(sweep / "lr0.001-s1", Labels(colour="#123456"))
    tab = open_page("runs")
    (sent,) = tab.sent("rows")
    colours = {row["key"]: row["colour"] for row in sent["rows"]}

    assert colours["lr0.001-s1"] == "#123456"
    assert all(colour.startswith("run-") for key, colour in colours.items() if key != "lr0.001-s1")


def test_the_name_is_a_link_and_equal_names_show_their_folders(logs):
    for key in ("a b", "c"):
        write_run(logs, key, display_name="same")
    tab = open_page("runs")
    (sent,) = tab.sent("rows")

    assert {row["href"]: row["also"] for row in sent["rows"]} == {
        "overview?run=a%20b": "a b",
        "overview?run=c": "c",
    }


def test_the_best_run_is_named_only_among_runs_of_one_project(logs):
    for name, project in (("a", "faces"), ("b", "faces"), ("c", "styles")):
        write_run(logs, name, project=project)

    assert "Pick a project, or search" in open_page("runs").said()
    assert "Best:" not in open_page("runs").said()
    assert "Best:" in open_page("runs", project="faces").said()
    assert "Best:" in open_page("runs", q="step>0").said()


@pytest.mark.parametrize(("third", "is_named"), [({"lr": 3}, True), ({"width": 8}, False)])
def test_without_a_project_the_best_is_named_only_among_runs_with_the_same_settings(logs, third, is_named):
    for name, config in (("a", {"lr": 1}), ("b", {"lr": 2}), ("c", third)):
        write_run(logs, name, start={"config": config})

    assert ("Best:" in open_page("runs").said()) is is_named
    assert ("Search, to see the best one." in open_page("runs").said()) is not is_named


def test_the_baseline_of_a_project_is_in_the_list_the_tiles_and_every_chart(sweep):
    write_project(sweep, None, replace(read_project(sweep, None), baseline="lr0.0001-s1"))
    table = open_page("runs").run_table().set_index("Run")

    assert table["vs baseline"].to_dict() == {
        "lr0.0001-s1": "baseline",
        "lr0.0001-s2": "+50.0 %",
        "lr0.001-s1": "+450.0 %",
        "lr0.001-s2": "+500.0 %",
    }
    overview = open_page("overview", "lr0.001-s2")
    assert "best 1.2 +500.0 % vs baseline" in overview.card_notes()
    for tab in (overview, open_page("metrics", "lr0.001-s2")):
        pale = [curve for chart in tab.curve_charts() for curve in chart["curves"] if curve.get("pale")]
        assert {(curve["run"], curve["label"]) for curve in pale} == {("lr0.0001-s1", "baseline lr0.0001-s1")}
    chosen = open_page("compare", runs=("lr0.001-s1", "lr0.0001-s1"))
    assert chosen.selectbox(key="base").value == "lr0.0001-s1"
    drawn_by = open_page("runs", show="Charts", q="lr=0.001").curve_charts()[0]["curves"]
    assert [curve["run"] for curve in drawn_by if curve.get("pale")] == ["lr0.0001-s1"]
    # A link may name another one, or one that is gone.
    assert open_page("runs", baseline="lr0.001-s2").run_table()["vs baseline"].tolist().count("baseline") == 1
    gone = open_page("runs", baseline="gone")
    assert "vs baseline" not in gone.run_table()
