"""Time and machine: the bars of spans under a mouse and a thumb: a drag zooms in, a click describes a span."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    drag,
    figure,
    fits_into,
    place_of,
    query,
    settle,
    wait_for_chart,
    wait_for_query,
)
from tests.lengths import in_make_faults
from tests.timing.span_run import write_span_run
from tests.timing.trace_checker import check_trace, slices


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_span_run(root, "r", ranks=2)
    return serve(root)


def bars(page):
    return chart(page, "spans").locator(".bars .point path")


def click_in_row(page, row, *, of):
    """Click in the middle of a row, where the iterations lie one after the other."""
    chart(page, "spans").scroll_into_view_if_needed()
    place = place_of(page, "spans")
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] * (row + 0.5) / of, steps=3)
    # Plotly takes a click for one on what the mouse is over.
    chart(page, "spans").locator(".hoverlayer .hovertext").first.wait_for()
    page.mouse.down()
    page.mouse.up()


@in_make_faults
def test_a_drag_zooms_and_a_click_shows_a_span_and_leads_to_its_step(shown, page):
    # An address of before.
    shown.open(page, "/timeline", run="r")
    expect(page.get_by_role("heading", name="Span timeline")).to_contain_text("96\N{EN DASH}100")
    before = figure(page, "spans")

    drag(page, "spans", 0.3, 0.6)
    wait_for_query(page, "q.get('since') && q.get('until')")
    settle(page)
    closer = wait_for_chart(page, "spans", "figure.traces.reduce((n, t) => n + t.x.length, 0) < 20")

    width = closer["range"][1] - closer["range"][0]
    assert width == pytest.approx((before["range"][1] - before["range"][0]) * 0.3, rel=0.05)
    assert float(query(page)["until"]) - float(query(page)["since"]) == pytest.approx(width / 1000, rel=0.01)

    with page.expect_download() as download:
        page.get_by_role("button", name="Chrome trace").click()
    with open(download.value.path(), "rb") as file:
        assert {event["pid"] for event in slices(check_trace(file.read()))} == {1, 2}

    click_in_row(page, 2, of=7)
    expect(page.get_by_text("recorded at the end")).to_be_visible()
    page.get_by_role("link", name="in Metrics").last.click()
    page.wait_for_url("**/metrics?*")
    wait_for_query(page, "q.has('run') && q.has('from') && q.has('to')")
    assert query(page)["run"] == "r"
    assert float(query(page)["from"]) < 98 < float(query(page)["to"])


@in_make_faults
def test_a_phone_shows_the_bars_without_scrolling_sideways(shown, new_page):
    page = new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    shown.open(page, "/machine", run="r")
    place = bars(page).last.bounding_box()

    assert place["x"] >= 0
    assert place["x"] + place["width"] <= 390
    fits_into(page, 390)
