"""Watching a run that is being written: it moves on by itself, obeys, and leaves what a person is doing alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    curves,
    drag,
    query,
    refresh_every,
    settle,
    sidebar,
    wait_for_curves,
    wait_for_query,
)
from tests.browser.growing_run import Growing, Training
from tests.lengths import in_make_faults
from toolkit.telemetry.runfolder.control import read_request

# tests/browser/test_main_paths.py watches a run in `make test`.
pytestmark = in_make_faults


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    return serve(tmp_path_factory.mktemp("logs"))


@pytest.fixture
def training(shown, tmp_path):
    with Training(shown.root, "live", tmp_path) as training:
        yield training


@pytest.fixture(scope="module")
def growing(shown):
    with Growing(shown.root, "growing") as growing:
        yield growing


def test_apply_sends_the_number_that_was_just_typed_however_soon_it_is_clicked(shown, training, page):
    shown.open(page, "/overview", run=training.folder.name)
    refresh_every(page, "2 s")
    side = sidebar(page)
    # Soon enough to meet the page while it still works on what was typed, at one of these times.
    for tries, wait_ms in enumerate((0, 20, 50, 100, 200, 400)):
        typed = 60 + 10 * tries
        side.get_by_role("spinbutton").fill(str(typed))
        page.keyboard.press("Tab")
        page.wait_for_timeout(wait_ms)
        side.get_by_role("button", name="Apply").click()
        expect(side.get_by_text(f"log every {typed}:").first).to_be_visible()
        expect(side.get_by_role("spinbutton")).to_have_value(str(typed))
        settle(page)
    # What the run does not take is refused: neither it nor the number before it is sent.
    sent = read_request(training.folder)
    for typed in ("5000", "4", "100000000000000000000"):
        side.get_by_role("spinbutton").fill(typed)
        page.keyboard.press("Tab")
        side.get_by_role("button", name="Apply").click()
        refusal = f"log every {typed} is out of range: 5 to 2000. Nothing was sent."
        expect(side.get_by_text(refusal)).to_be_visible()
        expect(side.get_by_role("spinbutton")).to_have_value(typed)
        settle(page)
    assert read_request(training.folder) == sent


def test_zoom_hidden_curves_scroll_and_typed_text_survive_refreshes(shown, growing, page):
    shown.open(page, "/overview", run="growing")
    # The box begins at what the run does, and a rate that never changes is drawn where it is.
    expect(sidebar(page).get_by_role("spinbutton")).to_have_value("10")
    assert curves(page, "Learning rate")["yRange"] == pytest.approx([0.8e-4, 1.2e-4])
    refresh_every(page, "2 s")
    drag(page, "Loss", 0.2, 0.5)
    wait_for_query(page, "q.has('from') && q.has('to')")
    settle(page)
    chart(page, "Loss").get_by_role("button", name="validation loss").click()
    wait_for_curves(page, "Loss", "seen.curves[1].hidden")
    page.evaluate("""() => {
        document.querySelector('[data-testid="stMain"]').scrollTo(0, 260);
        const chart = document.querySelector('.telemetry-curves[aria-label^="Loss,"]');
        chart.mine = true;
        window.lowest = Infinity;
        setInterval(() => {
            const now = document.querySelector('.telemetry-curves[aria-label^="Loss,"]');
            window.lowest = Math.min(window.lowest, now ? now.getBoundingClientRect().height : 0);
        }, 20);
    }""")
    typed = sidebar(page).get_by_role("spinbutton")
    typed.click()
    typed.fill("77")
    before, height = curves(page, "Loss"), chart(page, "Loss").bounding_box()["height"]
    scrolled = page.evaluate("""() => document.querySelector('[data-testid="stMain"]').scrollTop""")
    assert scrolled > 100

    after = wait_for_curves(page, "Loss", f"seen.curves[0].points >= {before['curves'][0]['points'] + 60}")

    assert after["xRange"] == pytest.approx(before["xRange"])
    assert [curve["hidden"] for curve in after["curves"]] == [False, True]
    assert chart(page, "Loss").bounding_box()["height"] == height
    assert chart(page, "Loss").evaluate("chart => chart.mine")
    assert page.evaluate("window.lowest") == height
    assert page.evaluate("""() => document.querySelector('[data-testid="stMain"]').scrollTop""") == scrolled
    assert typed.input_value() == "77"
    assert typed.evaluate("input => input === document.activeElement")
    assert query(page)["run"] == "growing"
