"""Where the time went, as people see it on a phone, in the dark."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.dashboard.timed_runs import write_timed_run
from tests.lengths import in_make_faults

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
FIGURES = "Time breakdown"

_PARTS = """() => {
    const strip = document.querySelector(".telemetry-ledger-strip");
    const whole = strip.getBoundingClientRect();
    return [...strip.children].map((part) => {
        const place = part.getBoundingClientRect();
        const style = getComputedStyle(part);
        return {
            share: place.width / whole.width, title: part.title, text: part.innerText,
            inside: part.scrollWidth <= part.clientWidth + 1, color: style.color, background: style.backgroundColor,
        };
    });
}"""


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    shares = {"training": 0.6, "data_wait": 0.3, "validation": 0.05}
    write_timed_run(root, "resumed", shares=shares, sessions=(range(1, 41), range(31, 81)), power_w=300.0)
    return serve(root)


def main_of(page):
    return page.locator('[data-testid="stMain"]')


def open_figures(page):
    main_of(page).get_by_text(FIGURES).click()
    table = main_of(page).locator(".telemetry-ledger-table")
    table.wait_for()
    return table


def has_no_overhang(page):
    """Wait until nothing has to be scrolled sideways: what a chart draws follows a little later."""
    page.wait_for_function(
        """() => { const main = document.querySelector('[data-testid="stMain"]');
                   return main.scrollWidth <= main.clientWidth; }"""
    )


@in_make_faults
def test_on_a_phone_in_the_dark_the_bar_and_its_figures_can_be_read(shown, new_page):
    page = new_page(**PHONE, color_scheme="dark")
    shown.open(page, "/overview", run="resumed")
    main_of(page).locator(".telemetry-ledger-strip").first.wait_for()

    # The font may come a little later than the text.
    page.wait_for_function(f"() => ({_PARTS})().every((part) => part.inside)")
    parts = page.evaluate(_PARTS)

    training = next(part for part in parts if part["title"].startswith("training"))
    said = float(re.search(r"([\d.]+) %", training["title"])[1])
    assert training["share"] == pytest.approx(said / 100, abs=0.03)
    assert training["color"] != training["background"]
    expect(main_of(page).get_by_text("Try more loader workers")).to_be_visible()

    table = open_figures(page)

    expect(table).to_contain_text("rework after a crash")
    expect(table).to_contain_text("kWh")
    expect(main_of(page).get_by_text("Session 2", exact=True)).to_be_visible()
    assert table.evaluate("table => table.getBoundingClientRect().right") <= 390
    has_no_overhang(page)
