"""What is logged stays on this machine, and what strangers wrote or serve does nothing here."""

from __future__ import annotations

import pytest

from tests.browser.browser_helpers import chart, foreign
from tests.lengths import in_make_faults
from tests.made_runs import write_run


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(root, "hostile")
    return serve(root)


@in_make_faults
def test_charts_offer_nothing_that_would_upload_them(shown, page):
    shown.open(page, "/overview", run="hostile")
    chart(page, "Loss")
    shown.open(page, "/machine", run="hostile")
    buttons = page.locator(".telemetry-chart .modebar-btn")

    # Plotly brings a button "Share chart..." along, which sends the data to its makers.
    titles = set(buttons.evaluate_all("buttons => buttons.map(button => button.dataset.title)"))
    assert titles <= {"Zoom", "Pan", "Save as PNG", "Save as SVG", "Save the values as CSV", "Full screen"}


def test_the_watch_sees_what_leaves():
    assert foreign(["http://localhost:1/", "ws://127.0.0.1:1/", "data:,", "blob:http://localhost:1/"]) == []
    assert foreign(["https://fonts.example/a.woff"]) == ["https://fonts.example/a.woff"]
