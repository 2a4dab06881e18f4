"""Runs over each other: curves, a baseline, groups, and what was configured differently."""

from __future__ import annotations

import json
import math

import pytest

from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run
from toolkit.telemetry.runfolder.labels import Labels, read_labels, write_labels


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


MANY = ",".join(f"r{number}" for number in range(10))


def curve_names(tab):
    return {curve["label"] for curve in tab.curve_charts()[0]["curves"]}


def groups(tab):
    return {
        group["label"]: [curve["run"] for curve in group["curves"]]
        for group in tab.curve_charts()[0]["groups"]
    }


def test_two_runs_are_drawn_over_each_other_and_compared_with_the_first(ten):
    tab = open_page("compare", runs="r0,r1")

    assert [chart["title"] for chart in tab.curve_charts()] == ["train_loss", "lr"]
    assert curve_names(tab) == {"r0", "r1"}
    summary = tab.run_table().set_index("Run")
    assert summary["last"]["r0"] == "1 ★"
    assert summary["last"]["r1"] == "2  (+100.0%)"
    assert "Really better?** Not decided whether r1 is better than r0" in tab.said()
    assert "lr 2 of 2 runs" in tab.said().replace("**", "").replace(":gray[", "").replace("]", "")


def test_metric_and_baseline_come_from_the_link_and_can_be_changed(ten):
    tab = open_page("compare", runs="r0,r1", base="r1", metric="lr")

    assert tab.selectbox(key="base").value == "r1"
    assert tab.curve_charts()[0]["title"] == "lr"
    assert "base" not in tab.curve_charts()[0]
    tab.toggle(key="diff").set_value(True).run()
    assert [chart["base"] for chart in tab.curve_charts()] == ["r1", "r1"]

    tab = open_page("compare", runs="r0,r1")
    tab.selectbox(key="base").set_value("r1").run()

    summary = tab.run_table().set_index("Run")
    assert (summary["last"]["r0"], summary["last"]["r1"]) == ("1  (-50.0%) ★", "2")
    assert tab.query_params["base"] == "r1"


def test_no_more_than_fifty_are_taken_from_the_url_and_the_page_says_so(logs):
    for number in range(52):
        write_run(logs, f"r{number}", sessions=(range(2),))
    tab = open_page("compare", runs=",".join(f"r{number}" for number in range(52)))

    assert len(tab.multiselect(key="_compared").value) == 50
    assert "Not shown: the last 2 runs of the link, because at most 50 are compared." in tab.said()


def test_unknown_runs_in_the_url_are_left_out(ten):
    tab = open_page("compare", runs="r0,gone,../../etc,r1,")

    assert tab.multiselect(key="_compared").value == ["r0", "r1"]
    assert "Not shown: gone, ../../etc, because there is no such run." in tab.said()

    assert "Pick two to 50 runs" in open_page("compare", runs="gone,nowhere").said()


def test_only_what_was_configured_differently_is_listed(ten):
    tab = open_page("compare", runs="r0,r1")

    found = tab.tables()[0]
    assert list(found["What"]) == ["learning_rate", "optimizer.eps"]
    assert list(found["r1"]) == ["1", "1"]
    assert list(tab.run_table()["learning_rate"]) == ["0", "1"], "and in the legend"
    # Each of many runs is a row.
    many = open_page("compare", runs=MANY).tables()[0]
    assert list(many["Run"]) == MANY.split(",")
    assert list(many["optimizer.eps"]) == ["0", "1"] * 5


def test_code_packages_and_command_line_are_differences_too(logs):
    for name, line, version in (("a", "x = 1\n", "2.1"), ("b", "x = 2\n", "2.2"), ("c", "x = 1\n", "2.1")):
        start = {
            "packages": {"torch": version, "numpy": "1"},
            "command_line": ["train.py", f"--seed={version}"],
        }
        folder = write_run(
            logs, name, start={**start, "config": {"lr": 1, "name": name}}, sessions=(range(2),)
        )
        (folder / "code" / "1").mkdir(parents=True)
        (folder / "code" / "1" / "train.py").write_text(line)
        known = {
            "kind": "git",
            "commit": "c0ffee" * 6 + version,
            "dirty": name == "b",
            "files": {"train.py": "1/train.py"},
        }
        (folder / "code" / "1.json").write_text(json.dumps(known))
    tab = open_page("compare", runs="a,b,c")

    found = tab.tables()[0].set_index("What")
    assert set(found.index) == {"code commit", "command line", "package torch"}
    assert list(found.loc["package torch"][["a", "b", "c"]]) == ["2.1", "2.2", "2.1"]
    assert found["b"]["code commit"] == "c0ffeec0ff, changed"
    assert found["a"]["command line"] == "train.py --seed=2.1"
    assert "Code that is not that of a: 1 run" in [one.label for one in tab.expander]


def test_names_and_tags_are_no_differences(logs):
    for name in "ab":
        write_run(logs, name, start={"config": {"name": name, "telemetry": {"tags": [name, "x"]}, "lr": 1}})

    assert "No differences in what these runs recorded." in open_page("compare", runs="a,b").said()


def test_runs_are_grouped_by_settings_by_all_but_the_seed_or_by_tag(logs):
    for number in range(8):
        config = {"lr": 10.0 ** -(number // 4 + 3), "rank": 4 * (number // 2 % 2 + 1), "seed": number}
        write_run(
            logs,
            f"r{number}",
            start={"config": config},
            tags=("even",) if number % 2 == 0 else ("odd", "all"),
            curves={"train_loss": lambda step, number=number: float(number)},
            sessions=(range(20),),
        )
    runs = ",".join(f"r{number}" for number in range(8))
    by_tag = open_page("compare", runs=runs, by="tag")
    # As the configuration has it.
    by_rank = open_page("compare", runs=runs, by="rank")
    assert list(groups(by_rank)) == ["4", "8"]
    by_rank.multiselect(key="by").set_value(["learning_rate", "lora_rank"]).run()
    but_seed = open_page("compare", runs=runs, by="all but the seed")

    assert {label: len(of) for label, of in groups(by_tag).items()} == {"all": 4, "even": 4, "odd": 4}
    assert list(groups(by_rank)) == [
        f"learning_rate {rate}, lora_rank {rank}" for rate in ("1e-4", "0.001") for rank in (4, 8)
    ]
    assert groups(but_seed) == groups(by_rank)
    assert groups(by_rank)["learning_rate 0.001, lora_rank 8"] == ["r2", "r3"]
    table = by_rank.run_table()
    assert list(table["runs"]) == ["2"] * 4
    assert table["last"][0].startswith("0.5 ± 0.71 ")


def test_groups_are_compared_with_one_of_them(ten):
    # As links of before name it.
    tab = open_page("compare", runs=MANY, by="optimizer.eps", base="1", diff="true")

    assert {chart["base"] for chart in tab.curve_charts()} == {"1"}
    assert list(groups(tab)) == ["0", "1"]
    # The losses are 1, 3, 5, 7, 9 and 2, 4, 6, 8, 10.
    last = tab.run_table().set_index("By optimizer.eps")["last"]
    assert list(last[["0", "1"]]) == ["5 ± 3.2  (-16.7%) ★", "6 ± 3.2"]
    tab.selectbox(key="base").set_value("0").run()
    assert {chart["base"] for chart in tab.curve_charts()} == {"0"}


def test_hidden_runs_are_in_the_address_and_their_eyes_are_closed(ten):
    tab = open_page("compare", runs="r0,r1,r2", hide="r1")

    rows = {row["key"]: row.get("hidden") for data in tab.sent("rows") for row in data["rows"]}
    assert [key for key, hidden in rows.items() if hidden] == ["r1"]


def colours(logs):
    return [read_labels(logs / f"r{number}").colour for number in range(10)]


def test_a_run_keeps_the_colour_it_had_when_it_was_first_compared(ten):
    write_labels(ten / "r3", Labels(colour="#123456", notes="mine"))
    several = ",".join(f"r{number}" for number in range(8))
    table = open_page("compare", runs=several).run_table()
    first = colours(ten)

    assert len(table) == 8
    assert first[3] == "#123456"
    assert read_labels(ten / "r3").notes == "mine"
    assert len(set(first[:8])) == 8, "there are twelve colours"
    assert first[8:] == [None, None]

    open_page("compare", runs="r9,r5")

    assert colours(ten)[:9] == first[:9]
    assert colours(ten)[9] not in (None, first[5])


@pytest.mark.parametrize("axis", ["Relative time", "progress", "metric:lr"])
def test_every_axis_is_for_groups_too(ten, axis):
    tab = open_page("compare", runs=MANY, by="optimizer.eps", x=axis, stat="median")

    assert all("axis" not in chart for chart in tab.curve_charts()), "it follows the switches"
    assert tab.switches()["view"]["statistic"] == "median"


def test_the_page_opens_on_the_metric_by_which_runs_are_sorted(logs):
    evaluated = {"event": "eval", "session": 1, "global_step": 9, "val_loss": 0.5}
    for name in "ab":
        write_run(
            logs,
            name,
            curves={"train_loss": float, "reward": float},
            extra=[evaluated],
            sessions=(range(10),),
        )
    tab = open_page("compare", runs="a,b")

    assert [chart["title"] for chart in tab.curve_charts()] == ["val_loss", "train_loss", "reward"]


def test_metrics_with_other_names_of_one_thing_are_one(logs):
    write_run(logs, "ours", curves={"train_loss": float, "val_loss": float}, sessions=(range(5),))
    write_run(logs, "mine", curves={"train_loss": float, "val_loss": float}, sessions=(range(5),))
    write_run(
        logs, "theirs", curves={"train/loss": float, "val/loss": float, "a/b": float}, sessions=(range(5),)
    )
    tab = open_page("compare", runs="ours,mine,theirs", metric="val/loss")

    assert [chart["title"] for chart in tab.curve_charts()] == ["val_loss", "train_loss"]
    assert {curve["run"]: curve["metric"] for curve in tab.curve_charts()[0]["curves"]} == {
        "ours": "val_loss",
        "mine": "val_loss",
        "theirs": "val/loss",
    }
    assert list(tab.run_table()["last"]) == ["4"] * 3


def test_runs_without_anything_in_common_or_at_all_are_compared_all_the_same(logs):
    write_run(logs, "a", curves={"x": float})
    write_run(logs, "b", curves={"y": float})
    write_run(logs, "c", [], status="starting")
    write_run(logs, "d", curves={"x": lambda step: 0.0})

    for runs in ("a,b", "a,c", "c,b", "d,a"):
        assert open_page("compare", runs=runs).is_well(), runs


def test_a_baseline_of_zero_gives_no_percentage_and_what_is_no_number_is_counted(logs):
    write_run(logs, "zero", curves={"train_loss": lambda step: 0.0})
    write_run(logs, "one", curves={"train_loss": lambda step: math.nan if step == 7 else 1.0})

    summary = open_page("compare", runs="zero,one").run_table().set_index("Run")

    assert summary["last"]["one"] == "1"
    assert list(summary["NaN or infinite"][["one", "zero"]]) == ["1", "0"]


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
    assert labels <= curve_names(tab)
    assert set(tab.run_table()["Run"]) == labels
    assert set(tab.selectbox(key="base").options) == labels
    assert len({*tab.multiselect(key="_compared").options}) == 3

    sweep = open_page("runs", show="Sweep")
    assert "Best of 3 runs: [same-0 lr=1](overview?run=same-0)" in sweep.said()
    assert "[same-1 lr=0.1](overview?run=same-1), is 100 %" in sweep.said()
    for page in ("overview", "config_notes"):
        tab = open_page(page, run="same-0")
        for select in tab.selectbox:
            assert len(set(select.options)) == len(select.options), (page, select.label)


def test_no_two_runs_have_one_text_in_a_select_however_long_or_odd_their_names_are(logs):
    for number, name in enumerate(
        ("x" * 300, "x" * 299 + "y", "x" * 119 + "…", " x\u200b", "x", "x  (run-5)")
    ):
        write_run(logs, f"run-{number}", display_name=name, sessions=(range(2),))
    tab = open_page("compare", runs="run-0,run-1")
    offered = open_page("overview", run="run-1").runs_offered()

    for options in (tab.multiselect(key="_compared").options, [text for _, text in offered]):
        assert len(set(options)) == 6, options


def test_why_two_runs_differ_is_said_on_a_click_and_not_before(logs):
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        write_run(logs, name, start={"config": {"learning_rate": rate, "notes": name}})
    tab = open_page("compare", runs="a,b")
    assert "equal" not in tab.said()

    tab.button(key="_why_asked").click().run()

    assert "They are equal to the last digit" in tab.said()
    assert any("the likely causes first" in expander.label for expander in tab.expander)
