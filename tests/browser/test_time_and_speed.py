"""Where the time went and which change made it slower, as people see it: on a phone, in the dark, live."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import refresh_every
from tests.dashboard.timed_runs import write_timed_run
from tests.lengths import in_make_faults
from tests.made_runs import SECONDS_A_STEP, append, write_run

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
    for number, seconds in enumerate((20.0, 20.2, 24.0)):
        tag = "before" if number < 2 else "after"
        began = 1.6e9 + 1e6 * number
        write_timed_run(root, f"job-{number}", perf_tags=(tag,), step_s=seconds, began=began)
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


@in_make_faults
def test_the_bar_of_a_live_run_changes_in_place_and_what_was_opened_stays_open(shown, page):
    steps = 100
    shares = {"ledger/training": lambda step: SECONDS_A_STEP}
    folder = write_run(
        shown.root,
        "live",
        status="running",
        sessions=(range(steps),),
        curves={"train_loss": lambda step: 1.0 - step / 400, **shares},
    )
    shown.open(page, "/overview", run="live")
    refresh_every(page, "2 s")
    table = open_figures(page)

    now = time.time()
    append(
        folder,
        [
            {
                "event": "step",
                "seq": steps + number,
                "session": 1,
                "time": now + 0.01 * number,
                "elapsed": (steps + number) * SECONDS_A_STEP,
                "global_step": steps + number,
                "train_loss": 0.7,
                "ledger/data_wait": SECONDS_A_STEP,
            }
            for number in range(1, 50)
        ],
    )

    names = main_of(page).locator(".telemetry-ledger-names")
    expect(names).to_contain_text("waiting for data")
    expect(table).to_be_visible()
