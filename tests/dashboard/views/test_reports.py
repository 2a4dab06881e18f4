"""What a page shows, as a file to download and as Markdown to copy."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.run_folders import write_run
from tests.dashboard.views.pages import button, choose, downloads, is_well, open_page
from tests.reports.report_parts import Page
from toolkit.reports.doctor import doctor_report
from toolkit.reports.html_page import to_html
from toolkit.reports.overview import overview
from toolkit.reports.stored_run import content_of_run
from toolkit.runs.sources.local_store import LocalStore

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
    tab = choose(open_page("overview", "r0"), "Report…")

    assert is_well(tab)
    assert HTML in downloads(tab)
    assert markdown(tab).startswith("### r0\n\n**Finished at step 99. ")


@pytest.mark.parametrize(
    ("page", "query", "verdict"),
    [
        ("compare", {"runs": "r0,r1"}, "**Best by train_loss: r0, 0.01 at step 99."),
        ("sweep", {}, "**Best of 2 runs: r0, with train_loss 0.01.**"),
    ],
)
def test_compare_and_sweep_have_one_too_made_on_demand(runs, page, query, verdict):
    tab = open_page(page, **query)
    assert HTML not in downloads(tab)

    button(tab, "Report").click()
    tab.run()

    assert is_well(tab)
    assert HTML in downloads(tab)
    assert verdict in markdown(tab)


def test_a_report_of_a_page_has_every_value_of_the_run(runs):
    store = LocalStore([runs], cache_dir=None)
    store.refresh("r0")

    content = content_of_run(store, "r0")
    page = Page(to_html(overview(content)))

    curve = next(curve for curve in page.data["curves"] if curve["metric"] == "train_loss")
    points = [point for part in curve["parts"] for point in part]
    assert [(x, repr(float(y))) for x, y in points] == [(step, repr(loss(step))) for step in range(100)]
    assert (curve["records"], curve["not_finite"]) == (100, 5)
    assert {finding.kind for finding in content.findings} >= {"nan"}
    assert content.evidence
    assert "Likely causes" in Page(to_html(doctor_report(content))).text
