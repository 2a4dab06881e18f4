"""What a page shows, as a file to download and as Markdown to copy."""

from __future__ import annotations

import math

import pytest

from dashboard.components import run_menu
from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run
from tests.reports.report_parts import Page
from toolkit.telemetry.reports.html_page import to_html
from toolkit.telemetry.runfolder.labels import Labels

HTML = "Download report (HTML)"


def loss(step):
    return math.nan if 40 <= step < 45 else 5.0 if step == 60 else 1.0 / (1 + step)


@pytest.fixture
def runs(logs):
    for number in range(2):
        write_run(
            logs,
            f"r{number}",
            curves={"train_loss": lambda step, number=number: loss(step) + number, "lr": lambda step: 1e-4},
            start={"config": {"lr": 1e-4 * (1 + number)}},
        )
    return logs


def markdown(tab):
    return next(code.value for code in tab.code if code.value.startswith("###"))


def test_a_run_has_a_report_in_its_menu(runs):
    tab = open_page("overview", "r0").choose("Report…")

    assert HTML in tab.downloads()
    assert markdown(tab).startswith("### r0\n\n**Finished at step 99. ")


@pytest.mark.parametrize(
    ("page", "query", "verdict"),
    [
        ("compare", {"runs": "r0,r1"}, "**Best by train_loss: r0, 0.01 at step 99."),
        ("runs", {"show": "Sweep"}, "**Best of 2 runs: r0, with train_loss 0.01.**"),
    ],
)
def test_compare_and_sweep_have_one_too_made_on_demand(runs, page, query, verdict):
    tab = open_page(page, **query)
    assert HTML not in tab.downloads()

    tab.button_called("Report").click()
    tab.run()

    assert HTML in tab.downloads()
    assert verdict in markdown(tab)


def report_of(monkeypatch, **query):
    """Return what the report of Compare shows, taken apart."""
    made = []
    monkeypatch.setattr(run_menu, "to_markdown", lambda document: made.append(document) or "")
    tab = open_page("compare", **query)
    tab.button_called("Report").click()
    tab.run()
    assert tab.is_well()
    return Page(to_html(made[0]))


def drawn(page, metric="train_loss"):
    return {curve["run"]: curve for curve in page.data["curves"] if curve["metric"] == metric}


def test_a_report_of_compare_has_the_difference_the_axis_the_part_the_colours_and_what_is_hidden(
    logs, monkeypatch
):
    for number, colour in enumerate(("#ff0000", "#00ff00", "#0000ff")):
        write_run(
            logs,
            f"r{number}",
            curves={"train_loss": lambda step, number=number: step + 10.0 * number},
            labels=Labels(colour=colour),
            sessions=(range(51),),
        )
    query = {
        "runs": "r0,r1,r2",
        "base": "r1",
        "diff": "true",
        "hide": "r2",
        "x": "progress",
        "from": "20",
        "to": "80",
    }
    page = report_of(monkeypatch, **query)

    assert set(drawn(page)) == {"r0", "r1"}
    assert {curve["axis"] for curve in drawn(page).values()} == {"progress"}
    assert {y for part in drawn(page)["r0"]["parts"] for _, y in part} == {-10}
    assert {y for part in drawn(page)["r1"]["parts"] for _, y in part} == {0}
    (figure,) = [one for one in page.all("figure") if "data-box" in one]
    assert figure["data-box"].split()[:2] == ["20.0", "80.0"]
    assert [one["style"] for one in page.all("path") if "data-line" in one] == [
        "color:#ff0000;",
        "color:#00ff00;",
    ]
    assert "progress in %" in page.text
    assert "hidden in the charts: r2" in page.text
    assert "50  (-16.7%)" in page.text, "the last value of r0, against r1"


def test_a_report_of_compare_has_the_groups_and_the_logarithmic_axis(logs, monkeypatch):
    for number in range(4):
        config = {"lr": 1 + number // 2, "seed": number}
        curves = {"train_loss": lambda step, number=number: 1.0 + number}
        write_run(logs, f"r{number}", curves=curves, start={"config": config}, sessions=(range(20),))
    page = report_of(monkeypatch, runs="r0,r1,r2,r3", by="learning_rate", log="true", stat="range")

    assert {name: {y for part in curve["parts"] for _, y in part} for name, curve in drawn(page).items()} == {
        "1": {1.5},
        "2": {3.5},
    }
    assert "minimum and maximum" in page.text
    assert "train_loss (last)" in page.text
    assert "1.5 ± 0.71" in page.text, "the table of the groups, as on the page"
    assert "3.5 ± 0.71  (+133.3%)" in page.text
    assert "(+100.0%)" not in page.text, "no single run is the baseline of groups"
    assert len([one for one in page.all("path") if one.get("class", "").startswith("spread")]) == 2
    assert next(one for one in page.all("figure") if "data-box" in one)["data-log"] == "1"
