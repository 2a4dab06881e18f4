"""The list of runs: found, filtered, sorted, picked."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.views import pages
from tests.dashboard.views.pages import (
    button,
    curve_charts,
    go_to,
    is_well,
    open_page,
    pick_runs,
    press_in_dialog,
    run_table,
    said,
)
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
    return list(run_table(tab)["Run"])


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
    table = run_table(open_page("runs")).set_index("Run")

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
    table = run_table(open_page("runs")).set_index("Run")

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


def test_the_search_box_and_pills_filter(five):
    tab = open_page("runs")
    tab.text_input(key="q").set_value("tag:baseline").run()

    assert set(names(tab)) == {"lora-a", "full-d"}

    tab.text_input(key="q").set_value("").run()
    pills = _status_pills(tab)
    assert "1 failed" in said(tab)

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
    assert links(pick_runs(tab, "lora-b")) == {"Open": "run=lora-b"}


def test_two_picked_runs_can_be_compared(five):
    tab = pick_runs(open_page("runs"), "lora-a", "lora-b")
    (label, query), *others = links(tab).items()
    compared = open_page("compare", None, **dict(parse_qsl(query)))

    assert (label, others) == ("Compare 2", [])
    assert sorted(compared.multiselect(key="_compared").value) == ["lora-a", "lora-b"]


def drawn(tab):
    """Return the runs whose curves are next to the list, and those whose eyes are open in it."""
    data = next(
        json.loads(text) for text in pages.sent_to_components(tab) if "selectable" in json.loads(text)
    )
    [large, *_] = curve_charts(tab)
    eyes = [row["key"] for row in data["rows"] if row["hidden"] is False]
    return sorted(curve["run"] for curve in large["curves"]), sorted(eyes)


def test_the_curves_of_the_first_runs_are_next_to_the_list_until_runs_are_picked(logs):
    for number in range(13):
        write_run(logs, f"r{number:02d}", curves={"train_loss": [1.0] * 100, "lr": [0.1] * 100})
    every = [f"r{number:02d}" for number in range(13)]
    tab = open_page("runs", show="Charts", sort="name", metric="lr")

    assert is_well(tab)
    assert drawn(tab) == (every[:10], every[:10])
    assert [chart["title"] for chart in curve_charts(tab)] == ["lr", "train_loss"]
    assert drawn(pick_runs(tab, "r03", "r12")) == (["r03", "r12"], ["r03", "r12"])
    shown = open_page("runs", show="Charts", sort="name", hide=("r00", "r01"), draw=("r11",))
    assert drawn(shown)[0] == [*every[2:10], "r11"], "as the eyes of a link have it"
    alone = open_page("runs", show="Charts", sort="name", hide=tuple(every[:10]))
    assert is_well(alone)
    assert not curve_charts(alone)
    assert "Every curve is hidden" in said(alone)


def test_the_charts_open_with_the_metric_by_which_the_list_compares(logs):
    for number in range(15):
        more = {"val_loss": [1.0] * 100} if number < 5 else {}
        write_run(logs, f"r{number:02d}", curves={"train_loss": [1.0] * 100, **more})
    tab = open_page("runs", show="Charts", sort="name")

    assert "train_loss best" in run_table(tab)
    assert curve_charts(tab)[0]["title"] == "train_loss"


def test_charts_stay_next_to_the_list_when_one_comes_back_to_it(five):
    tab = open_page("runs", show="Charts")
    go_to(tab, "overview")
    assert curve_charts(go_to(tab, "runs"))


def test_picked_runs_are_archived_together(five):
    tab = pick_runs(open_page("runs"), "lora-a", "lora-b")

    button(tab, "Archive").click().run()

    assert read_labels(five / "lora-a").archived
    assert read_labels(five / "lora-b").archived
    assert sorted(names(open_page("runs"))) == ["full-c", "full-d"]


def test_picked_runs_get_a_tag_besides_their_own(five):
    tab = pick_runs(open_page("runs"), "lora-a", "lora-b")
    tab.session_state["_new_tags"] = ["x y"]
    button(tab, "Tag…").click().run()

    press_in_dialog(tab, button(tab, "Tag…").click, "Add")

    assert read_labels(five / "lora-a").tags == ("baseline", "x y")
    assert read_labels(five / "lora-b").tags == ("x y",)


def test_links_and_files_in_the_folder_of_the_runs_are_skipped_and_reported(five, tmp_path):
    (five / "link").symlink_to(tmp_path)
    (five / "notes.txt").write_text("hello")
    (five / "empty").mkdir()

    tab = open_page("runs")

    assert len(names(tab)) == 4
    assert "link is a symbolic link and is not followed" in said(tab)


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
    pick_runs(tab, shown[1])
    write_labels(logs / shown[vanishes], Labels(archived=True))

    tab.run()

    assert ("1 selected" in said(tab).replace("**", "")) is (vanishes == 0)
    assert ("selected" in said(tab)) is (shown[1] in names(tab))


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
def test_a_long_list_is_searched_and_sorted_as_a_whole_and_shown_in_parts(logs):
    for number in range(120):
        (logs / f"r{number:03d}").mkdir()
        append(logs / f"r{number:03d}", [step_record(number)])
    every = [f"r{number:03d}" for number in range(120)]

    tab = open_page("runs", sort="-name")

    assert is_well(tab)
    assert names(tab) == every[:19:-1]
    assert "120 of 120 runs" in said(tab)

    asked, _ = tab.session_state["_runs_rows"]
    tab.session_state["_runs_rows"] = (asked, 300)
    tab.run()

    assert names(tab) == every[::-1]

    tab.text_input(key="q").set_value("-r11").run()

    assert names(tab) == every[109:9:-1]
    assert "110 of 120 runs" in said(tab)


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
    table = run_table(tab).set_index("Run")

    assert table.loc["lr0.0001-s2", ["val_loss best", "val_loss last", "learning_rate", "seed"]].tolist() == [
        *("0.3", "0.3", "1e-4", "2")
    ]
    assert "optimizer" not in table.columns
    assert "Best: lr0.0001-s1, lowest val_loss 0.2" in said(tab)


@pytest.mark.parametrize(
    ("query", "found"),
    [("lr=1e-3", 2), ("val_loss<0.25", 1), ("optimizer:adam seed=2", 2), ("best:val_loss>1.15", 1)],
)
def test_settings_and_metrics_are_searched(sweep, query, found):
    assert len(names(open_page("runs", q=query))) == found


def test_an_unknown_name_is_explained_with_the_nearest_and_names_are_offered(sweep):
    tab = open_page("runs", q="val_los<1")

    assert "did you mean val_loss" in said(tab)

    tab.text_input(key="q").set_value("opt").run()
    pills = next(item for item in tab.get("button_group") if (item.key or "").startswith("_names"))
    pills.set_value("optimizer").run()

    assert tab.text_input(key="q").value == "optimizer"


@pytest.mark.parametrize(
    ("order", "first"),
    [("best:val_loss", "lr0.0001-s1"), ("-best:val_loss", "lr0.001-s2"), ("-last:val_loss", "lr0.001-s2")],
)
def test_any_column_sorts(sweep, order, first):
    assert names(open_page("runs", sort=order))[0] == first


def test_the_order_of_a_column_stays_in_the_address(sweep):
    tab = open_page("runs", sort="config:seed")

    assert [name[-1] for name in names(tab)] == ["1", "1", "2", "2"]
    assert "config:seed" in tab.query_params["sort"]


def test_columns_are_chosen_in_the_address_and_kept_for_the_project(sweep):
    tab = open_page("runs", cols="seed~config:optimizer!~name~best:val_loss")

    assert [*run_table(tab).columns[:3]] == ["Run", "optimizer", "val_loss best"]

    button(tab, "Keep for the project").click().run()

    assert [*run_table(open_page("runs")).columns[:3]] == ["Run", "optimizer", "val_loss best"]
    assert read_project(sweep, None).columns == ("config:optimizer!", "name", "best:val_loss")


def test_a_column_has_the_forecasts_of_live_runs_if_it_is_chosen(logs):
    for name in ("a", "b", "c", "d"):
        write_run(logs, name, status="running", summary={"max_steps": 200})
    write_run(logs, "over")

    assert "Forecast" not in run_table(open_page("runs")).columns
    table = run_table(open_page("runs", cols="name~forecast")).set_index("Run")["Forecast"]
    # A few in one refresh.
    assert sorted(" to " in cell for cell in table) == [False, False, True, True, True]
    assert table["over"] == ""


def test_a_formula_is_a_column_that_sorts_and_a_view_keeps_the_list(sweep):
    formula = "= best(val_loss) * 2"
    tab = open_page("runs", cols="name~seed", sort="-best:val_loss")
    tab.text_input(key="_columns_formula 0").set_value("best(val_los)").run()
    assert "did you mean val_loss?" in said(tab) or "use min() or max()" in said(tab)
    tab.text_input(key="_columns_formula 0").set_value(formula).run()
    assert [*run_table(tab).columns[:2]] == ["Run", "best(val_loss) * 2"]
    tab.text_input(key="_view_name").set_value("Doubled").run()
    button(tab, "Keep view").click().run()
    assert is_well(tab)

    tab = open_page("runs")
    assert "best(val_loss) * 2" not in run_table(tab).columns
    tab.selectbox(key="_pick_view ").set_value("Doubled").run()
    assert [*run_table(tab).columns[:2]] == ["Run", "best(val_loss) * 2"]
    assert "Doubled" in tab.query_params["view"]
    assert [*run_table(open_page("runs", view="Doubled")).columns[:2]] == ["Run", "best(val_loss) * 2"]
    assert formula in open_page("runs", sort=formula, cols=f"name~{formula}").query_params["sort"]


def test_the_primary_metric_is_chosen_for_the_project(sweep):
    tab = open_page("runs")

    tab.selectbox(key="_primary val_loss").set_value("train_loss").run()

    assert read_project(sweep, None).primary_metric == "train_loss"
    assert "train_loss best" in run_table(open_page("runs")).columns


def test_runs_are_grouped_by_a_setting(sweep):
    table = run_table(open_page("runs", group="learning_rate"))

    assert table["learning_rate"].tolist() == ["1e-4", "0.001"]
    assert table["Runs"].tolist() == ["2", "2"]
    assert table["val_loss mean"].tolist() == ["0.25", "1.15"]
    assert table["Best run"].tolist() == ["lr0.0001-s1", "lr0.001-s1"]


def test_deleted_runs_come_back_with_undo(sweep):
    tab = pick_runs(open_page("runs"), "lr0.0001-s1", "lr0.001-s1")

    button(tab, "Delete").click().run()

    assert sorted(names(tab)) == ["lr0.0001-s2", "lr0.001-s2"]

    button(tab, "Undo").click().run()

    assert len(names(open_page("runs"))) == 4


def test_a_run_keeps_the_colour_that_was_chosen(sweep):
    write_labels(sweep / "lr0.001-s1", Labels(colour="#123456"))
    tab = open_page("runs")
    (sent,) = [data for item in tab.get("bidi_component") if "rows" in (data := json.loads(item.proto.json))]
    colours = {row["key"]: row["colour"] for row in sent["rows"]}

    assert colours["lr0.001-s1"] == "#123456"
    assert all(colour.startswith("run-") for key, colour in colours.items() if key != "lr0.001-s1")


def test_the_name_is_a_link_and_equal_names_show_their_folders(logs):
    for key in ("a b", "c"):
        write_run(logs, key, display_name="same")
    tab = open_page("runs")
    (sent,) = [data for item in tab.get("bidi_component") if "rows" in (data := json.loads(item.proto.json))]

    assert {row["href"]: row["also"] for row in sent["rows"]} == {
        "overview?run=a%20b": "a b",
        "overview?run=c": "c",
    }


def test_the_best_run_is_named_only_among_runs_of_one_project(logs):
    for name, project in (("a", "faces"), ("b", "faces"), ("c", "styles")):
        write_run(logs, name, project=project)

    assert "Pick a project, or search" in said(open_page("runs"))
    assert "Best:" not in said(open_page("runs"))
    assert "Best:" in said(open_page("runs", project="faces"))
    assert "Best:" in said(open_page("runs", q="step>0"))


@pytest.mark.parametrize(("third", "is_named"), [({"lr": 3}, True), ({"width": 8}, False)])
def test_without_a_project_the_best_is_named_only_among_runs_with_the_same_settings(logs, third, is_named):
    for name, config in (("a", {"lr": 1}), ("b", {"lr": 2}), ("c", third)):
        write_run(logs, name, start={"config": config})

    assert ("Best:" in said(open_page("runs"))) is is_named
    assert ("Search, to see the best one." in said(open_page("runs"))) is not is_named


def test_the_baseline_of_a_project_is_in_the_list_the_tiles_and_every_chart(sweep):
    write_project(sweep, None, replace(read_project(sweep, None), baseline="lr0.0001-s1"))
    table = run_table(open_page("runs")).set_index("Run")

    assert table["vs baseline"].to_dict() == {
        "lr0.0001-s1": "baseline",
        "lr0.0001-s2": "+50.0 %",
        "lr0.001-s1": "+450.0 %",
        "lr0.001-s2": "+500.0 %",
    }
    overview = open_page("overview", "lr0.001-s2")
    assert is_well(overview)
    assert "best +500.0 % vs baseline" in " ".join(pages.card_notes(overview))
    for tab in (overview, open_page("metrics", "lr0.001-s2")):
        pale = [curve for chart in curve_charts(tab) for curve in chart["curves"] if curve.get("pale")]
        assert {(curve["run"], curve["label"]) for curve in pale} == {("lr0.0001-s1", "baseline lr0.0001-s1")}
    chosen = open_page("compare", runs=("lr0.001-s1", "lr0.0001-s1"))
    assert chosen.selectbox(key="base").value == "lr0.0001-s1"
    drawn_by = curve_charts(open_page("runs", show="Charts", q="lr=0.001"))[0]["curves"]
    assert [curve["run"] for curve in drawn_by if curve.get("pale")] == ["lr0.0001-s1"]
    # A link may name another one, or one that is gone.
    assert run_table(open_page("runs", baseline="lr0.001-s2"))["vs baseline"].tolist().count("baseline") == 1
    gone = open_page("runs", baseline="gone")
    assert is_well(gone)
    assert "vs baseline" not in run_table(gone)
