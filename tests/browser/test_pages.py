"""Getting around: every page by its address, two runs over each other, and a phone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    fits_into,
    place_of,
    query,
    settle,
    status,
    wait_for_curves,
    wait_for_query,
)
from tests.lengths import in_make_faults
from tests.made_runs import write_run

# tests/browser/test_main_paths.py opens pages in `make test`.
pytestmark = in_make_faults

PAGES = {
    "/overview": "Train loss",
    "/metrics": "train_loss",
    "/machine": "This run has no system metrics.",
    "/alerts": "No alerts.",
    "/samples": "No samples.",
    "/config": "Notes",
}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for number, name in enumerate(("first", "second", "third")):
        write_run(
            root,
            name,
            curves={
                "train_loss": lambda step, number=number: (2.0 + number) / (1.0 + step / 50.0),
                "lr": lambda step: 1e-4,
                "grad_norm": lambda step: 1.0 + step % 3,
                "samples_per_sec": lambda step: 100.0,
            },
            start={"config": {"lr": 0.001 * (number + 1)}},
            sessions=(range(300),),
            tags=("sweep",) if number < 2 else (),
        )
    return serve(root)


def main_of(page):
    return page.locator('[data-testid="stMain"]')


def is_whole(page):
    """Say that no part of the page failed."""
    return (
        page.locator('[data-testid="stException"]').count() == 0
        and not page.get_by_text("could not be drawn").count()
    )


def test_every_page_opens_by_its_address_and_keeps_the_run(shown, page):
    for path, word in PAGES.items():
        shown.open(page, path, run="second")
        expect(main_of(page).get_by_role("heading", name="second")).to_be_visible()
        expect(status(page)).to_contain_text("Finished")
        expect(main_of(page).get_by_text(word).filter(visible=True).first).to_be_visible()
        assert is_whole(page), path
        assert query(page)["run"] == "second"
    for path, word in (
        ("/", "3 of 3 runs"),
        ("/sweep", "Best of"),
        ("/compare", "Pick two to 50 runs"),
    ):
        shown.open(page, path)
        expect(main_of(page).get_by_text(word).filter(visible=True).first).to_be_visible()
        assert is_whole(page), path


def test_the_run_stays_in_the_address_from_page_to_page(shown, page):
    shown.open(page, "/overview", run="third")
    for name in ("Metrics", "Config & output", "Runs", "Overview"):
        page.locator('[data-testid="stSidebarNav"]').get_by_role("link", name=name).click()
        if name == "Runs":
            expect(main_of(page).get_by_text("3 of 3 runs")).to_be_visible()
            continue
        wait_for_query(page, "q.get('run') === 'third'")
        expect(main_of(page).get_by_role("heading", name="third")).to_be_visible()


def test_a_reload_shows_the_same_view(shown, page):
    shown.open(page, "/overview", **{"run": "first", "smooth": "5%", "log": "true", "from": 50, "to": 150})
    is_complete = "seen.xRange[0] === 50 && seen.logY && seen.level === 0"
    before = wait_for_curves(page, "Loss", is_complete)
    page.reload()
    settle(page)
    after = wait_for_curves(page, "Loss", is_complete)

    assert query(page) == {"run": "first", "smooth": "5%", "log": "true", "from": "50", "to": "150"}
    assert before["xRange"] == after["xRange"] == [50, 150]
    assert before["smoothing"] == after["smoothing"] == 0.05
    assert before["curves"] == after["curves"]


def test_two_runs_are_compared_along_time_and_against_a_baseline(shown, page):
    shown.open(page, "/compare", runs="first,second")
    both = wait_for_curves(page, "train_loss", "seen.curves.length === 2 && seen.xRange")
    assert [curve["label"] for curve in both["curves"]] == ["first", "second"]
    page.locator(".telemetry-switches select").first.select_option("elapsed")
    along = wait_for_curves(page, "train_loss", "seen.axis === 'elapsed' && seen.xRange[1] > 100")

    assert along["xRange"][1] == pytest.approx(299 / 2, rel=0.1)
    expect(page.locator(".trt").first).to_contain_text("(+50.0%)")
    for rate in ("0.001", "0.002"):
        expect(
            page.locator(".trt").nth(1).locator("td", has_text=re.compile(f"^{rate}$")).first
        ).to_be_attached()
    wait_for_query(page, "q.get('x') === 'Relative time'")
    assert query(page) == {"runs": "first,second", "x": "Relative time"}


def test_a_phone_shows_the_run_without_scrolling_sideways(shown, new_page):
    page = new_page(**PHONE)
    shown.open(page, "/overview", run="first")
    place = place_of(page, "Loss")
    assert place["y"] + place["height"] <= 844, "the loss is on the first screen"
    for part in (status(page), main_of(page).get_by_text("step 299").first):
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    expect(page.locator('[data-testid="stSidebar"]')).to_have_attribute("data-collapsed", "true")
    for path, asked in (("/overview", None), ("/", {}), ("/compare", {"runs": "first,second"})):
        if asked is not None:
            shown.open(page, path, **asked)
        fits_into(page, 390)
