"""Watching a run that is being written: it moves on by itself, obeys, and leaves what a person is doing alone."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    chart,
    drag,
    figure,
    query,
    settle,
    status,
    trace,
    wait_for_chart,
    wait_for_query,
)
from tests.browser.growing_run import Growing, Training
from tests.lengths import in_make_faults
from toolkit.runfolder.control import read_request

pytestmark = pytest.mark.slow

# The number in the header, behind the word in bold.
_STEP = """() => {
    for (const part of document.querySelectorAll('[data-testid="stMain"] strong')) {
        const found = part.innerText.match(/^step ([\\d,]+)/);
        if (found) return Number(found[1].replaceAll(",", ""));
    }
    return -1;
}"""


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


def step_shown(page):
    return page.evaluate(f"() => ({_STEP})()")


def refresh_every(page, choice):
    page.locator('[data-testid="stMain"]').get_by_text(choice, exact=True).first.click()
    settle(page)


def sidebar(page):
    return page.locator('[data-testid="stSidebar"]')


def wait_until_step(page, step):
    page.wait_for_function(f"step => ({_STEP})() >= step", arg=step)


def test_a_training_process_is_watched_steered_and_stopped(shown, training, page):
    shown.open(page, "/overview", run=training.folder.name)
    expect(status(page)).to_contain_text("Running")
    refresh_every(page, "2 s")
    page.evaluate("window.notReloaded = true")

    # It advances.
    step, x = step_shown(page), trace(figure(page, "Loss"), "train loss")["x"][-1]
    wait_until_step(page, step + 20)
    wait_for_chart(page, "Loss", f"Math.max(...figure.traces[0].x) >= {x + 20}")

    # It logs less often when asked to, and the moment is marked.
    side = sidebar(page)
    side.get_by_role("spinbutton").fill("50")
    page.keyboard.press("Tab")
    settle(page)
    side.get_by_role("button", name="Apply").click()
    expect(side.get_by_text(re.compile("log every 50: (pending|applied)")).first).to_be_visible()
    expect(side.get_by_text(re.compile(r"log every 50: applied at step [\d,]+ \(5 → 50\)"))).to_be_visible()
    assert wait_for_chart(page, "Loss", "figure.shapes.length === 1")["notes"] == ["log_every → 50"]
    wait_for_chart(page, "Gradient norm", "figure.shapes.length === 1")
    # That stands in run.json, which the run writes every five seconds.
    expect(side.get_by_text("Logs every 50 steps.")).to_be_visible()

    # It saves and stops once that is confirmed, and then nothing more can be asked of it.
    side.get_by_role("button", name="Save and stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("saves and then stops")
    assert training.child.process.poll() is None
    dialog.get_by_role("button", name="Save and stop").click()
    ended = training.child.end()
    assert ended.code == 0, ended.err
    assert (training.folder / "weights.bin").stat().st_size == 1000
    expect(status(page)).to_contain_text("Stopped")
    expect(page.locator('[data-testid="stMain"]').get_by_text("checkpoint at step").first).to_be_visible()
    expect(side.get_by_text("The run is stopped and cannot be controlled.")).to_be_visible()
    expect(side.get_by_role("button", name="Apply")).to_be_disabled()
    expect(dialog).to_have_count(0)
    assert page.evaluate("window.notReloaded")
    assert training.manifest.control["log_every_now"] == 50


@in_make_faults
def test_apply_sends_the_number_that_was_just_typed_however_soon_it_is_clicked(shown, training, page):
    shown.open(page, "/overview", run=training.folder.name)
    refresh_every(page, "2 s")
    side = sidebar(page)
    # Soon enough to meet the page while it still works on what was typed, at one of these moments.
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


@in_make_faults
def test_apply_sends_what_the_slider_was_dragged_to(shown, training, page):
    shown.open(page, "/overview", run=training.folder.name)
    refresh_every(page, "2 s")
    side = sidebar(page)
    for notch in (10, 20, 50):
        side.get_by_role("slider").press("ArrowRight")
        # A slider waits a fifth of a second for more before it tells the page; the number beside it then follows.
        expect(side.get_by_role("spinbutton")).to_have_value(str(notch))
        side.get_by_role("button", name="Apply").click()
        expect(side.get_by_text(f"log every {notch}:").first).to_be_visible()
        settle(page)


@in_make_faults
def test_zoom_hidden_curves_scroll_and_typed_text_survive_refreshes(shown, growing, page):
    shown.open(page, "/overview", run="growing")
    # The box begins at what the run does, and a rate that never changes is drawn where it is.
    expect(sidebar(page).get_by_role("spinbutton")).to_have_value("10")
    frame = chart(page, "Learning rate").evaluate("div => div._fullLayout.yaxis.range")
    assert frame == pytest.approx([0.9e-4, 1.1e-4])
    refresh_every(page, "2 s")
    drag(page, "Loss", 0.2, 0.5)
    wait_for_query(page, "q.has('from') && q.has('to')")
    settle(page)
    chart(page, "Loss").locator(".legendtoggle").last.click(force=True)
    wait_for_chart(page, "Loss", "figure.traces.some(trace => trace.visible === 'legendonly')")
    page.evaluate("""() => {
        document.querySelector('[data-testid="stMain"]').scrollTo(0, 260);
        const chart = document.querySelector('.telemetry-chart[aria-label^="Loss,"]');
        chart.mine = true;
        window.lowest = Infinity;
        setInterval(() => {
            const now = document.querySelector('.telemetry-chart[aria-label^="Loss,"]');
            window.lowest = Math.min(window.lowest, now ? now.getBoundingClientRect().height : 0);
        }, 20);
    }""")
    typed = sidebar(page).get_by_role("spinbutton")
    typed.click()
    typed.fill("77")
    before = figure(page, "Loss")
    scrolled = page.evaluate("""() => document.querySelector('[data-testid="stMain"]').scrollTop""")
    assert scrolled > 100

    after = wait_for_chart(page, "Loss", f"figure.drawn >= {before['drawn'] + 3}")

    assert after["range"] == pytest.approx(before["range"])
    assert [curve["visible"] for curve in after["traces"]] == [curve["visible"] for curve in before["traces"]]
    assert after["height"] == before["height"]
    assert chart(page, "Loss").evaluate("chart => chart.mine")
    assert page.evaluate("window.lowest") == before["height"]
    assert page.evaluate("""() => document.querySelector('[data-testid="stMain"]').scrollTop""") == scrolled
    assert typed.input_value() == "77"
    assert typed.evaluate("input => input === document.activeElement")
    assert query(page)["run"] == "growing"


@in_make_faults
def test_notes_and_a_search_are_typed_in_peace(shown, growing, page):
    shown.open(page, "/config", run="growing")
    refresh_every(page, "2 s")
    notes = page.get_by_role("textbox", name="Notes")
    notes.click()
    page.keyboard.type("half a thou")
    for _ in range(3):
        wait_until_step(page, step_shown(page) + 1)
    page.keyboard.type("ght")

    assert notes.input_value() == "half a thought"

    sidebar(page).get_by_role("link", name="Runs").click()
    search = page.get_by_role("textbox", name="Search")
    search.click()
    page.keyboard.type("grow")
    # A table is drawn on a canvas; what it says is kept inside for screen readers.
    listed = page.locator('[data-testid="stDataFrame"] canvas').first
    listed.locator("td").first.wait_for(state="attached")
    for _ in range(3):
        # Found anew each time: a table may be put in the place of the one before.
        page.wait_for_function(
            """before => {
                const list = document.querySelector('[data-testid="stDataFrame"] canvas');
                return list && list.textContent && list.textContent !== before;
            }""",
            arg=listed.text_content(),
        )
    page.keyboard.type("ing")

    assert search.input_value() == "growing"
