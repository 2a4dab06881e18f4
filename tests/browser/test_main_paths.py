"""The main paths in a real browser: a run that is watched and steered, one that is read, and what others try.

All of them are in one file, with one browser and one dashboard: to start those takes most of the time.
"""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest
from playwright.sync_api import expect

from tests.attacks.hostile_runs import Poison, poisoned_run
from tests.attacks.page_checks import Beacon
from tests.browser.browser_helpers import (
    chart,
    curves,
    hover,
    refresh_every,
    settle,
    sidebar,
    status,
    step_shown,
    wait_for_curves,
    wait_until_step,
)
from tests.browser.growing_run import Training
from tests.dashboard.serving import get
from tests.lengths import longer
from tests.made_runs import write_run
from tests.records import read_records
from tests.waiting import wait_until
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.layout import CONTROL


@pytest.fixture(scope="module")
def beacon():
    """Another site, with one empty page."""
    with Beacon() as server:
        yield server


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory, beacon):
    root = tmp_path_factory.mktemp("logs")
    write_run(root, "not-finite", curves={"train_loss": _not_always_finite}, sessions=(range(200),))
    poisoned_run(root, "poisoned", Poison(beacon.place))
    return serve(root)


def _not_always_finite(step):
    odd = {10: math.nan, 30: math.inf, 40: -math.inf, 50: math.nan, 51: math.nan, 52: math.nan}
    return odd.get(step, 2.0 - step / 200)


@pytest.fixture
def training(shown, tmp_path):
    with Training(shown.root, "live", tmp_path) as training:
        yield training


def _logged(folder, step):
    records = read_records(folder, "step", live=True)
    return next(record["train_loss"] for record in records if record["global_step"] == step)


def test_the_first_curve_needs_few_bytes(shown, contexts):
    page = contexts(viewport={"width": 1440, "height": 900}).new_page()
    asked, received = [], []
    network = page.context.new_cdp_session(page)
    network.on("Network.requestWillBeSent", lambda event: asked.append(event["request"]["url"]))
    network.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    network.send("Network.enable")
    shown.open(page, "/overview", run="not-finite")
    chart(page, "Loss")

    # Measured: 74 requests.
    assert len([url for url in asked if not url.startswith(("blob:", "data:"))]) <= 80, asked
    assert sum(received) <= 2_300_000
    page.close()


def test_one_press_of_back_leads_from_each_page_to_the_one_before_it(shown, page):
    def by_menu(name):
        sidebar(page).get_by_test_id("stSidebarNav").get_by_role("link", name=name).click()

    def back_to(address):
        settle(page)
        page.go_back()
        page.wait_for_url(shown.url(address))

    shown.open(page, "/?q=not-finite")
    page.locator(".trt-link").first.click()
    status(page).wait_for()
    back_to("/?q=not-finite")
    page.locator(".trt-link").first.click()
    page.wait_for_url(shown.url("/overview?run=not-finite"))
    by_menu("Metrics")
    page.wait_for_url(shown.url("/metrics?run=not-finite"))
    back_to("/overview?run=not-finite")
    assert curves(page, "Loss")["curves"]
    shown.open(page, "/compare", runs="not-finite,poisoned")
    page.locator(".trt-link").first.click()
    status(page).wait_for()
    back_to("/compare?runs=not-finite%2Cpoisoned")
    shown.open(page, "/")
    by_menu("Overview")
    status(page).wait_for()
    back_to("/")


def test_quick_switches_between_pages_end_on_the_last_one(shown, page):
    shown.open(page, "/overview", run="not-finite")
    visited = "metrics alerts overview config metrics machine overview alerts config metrics".split()
    page.evaluate(
        """async (visited) => {
            const links = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')];
            for (const name of visited) {
                links.find((link) => link.pathname.endsWith(name)).click();
                await new Promise((done) => setTimeout(done, 100));
            }
        }""",
        visited,
    )

    page.wait_for_url(re.compile("/metrics"))
    expect(page.locator('[data-testid="stSidebarNavLink"][aria-current="page"]')).to_have_text(
        re.compile("Metrics")
    )
    settle(page)
    assert curves(page, "train_loss")["curves"]
    expect(page.locator(".telemetry-cards")).to_have_count(0)


def test_a_run_that_is_deleted_while_it_is_shown_says_so(shown, page):
    folder = write_run(shown.root, "deleted")
    shown.open(page, "/overview", run="deleted")
    refresh_every(page, "2 s")
    shutil.rmtree(folder)

    expect(page.get_by_text("There is no run called 'deleted'.")).to_be_visible()
    # Neither does a first screen show it any more.
    assert b"<h1>" not in get(shown.port, "/overview?run=deleted")[2]


def test_a_training_process_is_watched_steered_and_stopped(shown, training, page):
    shown.open(page, "/overview", run=training.folder.name)
    expect(status(page)).to_contain_text("Running")
    refresh_every(page, "2 s")
    page.evaluate("window.notReloaded = true")

    # It advances.
    step, x = step_shown(page), curves(page, "Loss")["xRange"][1]
    wait_until_step(page, step + 20)
    wait_for_curves(page, "Loss", f"seen.xRange[1] >= {x + 20}")

    # What the tooltip calls logged is a record, in the empty area above the curve too.
    text = hover(page, "Loss", 0.5, 0.03)
    said = re.search(r"step ([\d,]+) · (?:about )?(?:[\d-]{10} )?[\d:]{8} .*\ntrain loss\s+([\d.]+)", text)
    assert said is not None, text
    assert float(said[2]) == pytest.approx(_logged(training.folder, int(said[1].replace(",", ""))), rel=1e-5)
    page.mouse.move(5, 5)
    expect(page.locator(".telemetry-tip")).to_have_count(0)

    # It logs less often when asked to, and the time is marked.
    side = sidebar(page)
    side.get_by_role("spinbutton").fill("50")
    page.keyboard.press("Tab")
    settle(page)
    side.get_by_role("button", name="Apply").click()
    expect(side.get_by_text(re.compile("log every 50: (pending|applied)")).first).to_be_visible()
    expect(side.get_by_text(re.compile(r"log every 50: applied at step [\d,]+ \(5 → 50\)"))).to_be_visible()
    marked = wait_for_curves(page, "Loss", "seen.marks.length === 1")
    assert [mark["text"] for mark in marked["marks"]] == ["log_every → 50"]
    wait_for_curves(page, "Gradient norm", "seen.marks.length === 1")
    # That is in run.json, which the run writes every five seconds.
    expect(side.get_by_text("Logs every 50 steps.")).to_be_visible()

    # It saves and stops once that is confirmed, and then nothing more can be asked of it.
    side.get_by_role("button", name="Save and stop").click()
    question = page.get_by_test_id("stPopoverBody")
    expect(question).to_contain_text("saves and then stops")
    assert training.child.process.poll() is None
    question.get_by_role("button", name="Save and stop").click()
    ended = training.child.end()
    assert ended.code == 0, ended.err
    assert (training.folder / "weights.bin").stat().st_size == 1000
    expect(status(page)).to_contain_text("Stopped")
    expect(page.locator('[data-testid="stMain"]').get_by_text("checkpoint at step").first).to_be_visible()
    expect(side.get_by_role("button", name="Apply")).to_have_count(0)
    expect(question).to_have_count(0)
    assert page.evaluate("window.notReloaded")
    assert training.manifest.control["log_every_now"] == 50


@pytest.mark.parametrize("run", ["not-finite", "poisoned"])
def test_a_report_opens_from_a_file_and_asks_for_nothing(shown, contexts, beacon, tmp_path, run):
    target, before = tmp_path / "report.html", list(beacon.asked)
    main(["report", str(shown.root / run), "--html", str(target)])
    tab = contexts(viewport={"width": 390, "height": 800}, color_scheme="dark").new_page()
    asked, trouble = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        tab.goto(target.as_uri())
        expect(tab.locator("h1")).to_be_visible()
        chart = tab.locator("figure[data-curves]").first

        # The thumb or the mouse reads a logged value.
        chart.locator(".area").hover()
        expect(chart.locator(".tip")).to_contain_text("step")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        with tab.expect_download() as saved:
            tab.get_by_role("button", name="Download the data as CSV").click()
        lines = saved.value.path().read_text("utf-8").splitlines()
    finally:
        tab.close()

    assert lines[0] == "run,metric,axis,x,value"
    assert any(line.endswith(",NaN") for line in lines) or run != "not-finite"
    assert [url for url in asked if not url.startswith(("blob:", "data:"))] == [target.as_uri()]
    assert trouble == []
    assert beacon.asked == before


_CONTROL = {
    "log_every": {"low": 5, "high": 2000},
    "log_every_now": 10,
    "actions": [],
    "knobs": {"lr_scale": {"type": "float", "value": 1.0}, "early_stop": {"type": "int", "value": 10}},
}


def test_a_number_typed_into_any_box_is_the_number_that_counts(shown, page):
    folder = write_run(
        shown.root,
        "steered",
        curves={"train_loss": lambda step: 3.0 if step == 7 or 30 <= step < 60 else 1.0},
        status="running",
        control=_CONTROL,
    )

    def asked_for():
        request = folder / CONTROL
        return json.loads(request.read_text()) if request.exists() else {}

    def has_effect_of(label, box):
        """Type a number, and wait for what follows from it on the page or on disk."""
        box.scroll_into_view_if_needed()
        box.fill("20" if label == "For records" else "25")
        page.keyboard.press("Tab")
        settle(page)
        if label == "For records":
            page.get_by_label("Name", exact=True).fill("high")
            page.get_by_label("When", exact=True).fill("train_loss > 2")
            page.keyboard.press("Tab")
            expect(page.get_by_text("Would have fired once in this run, first at step 49.")).to_be_visible()
        elif label == "steps":
            sidebar(page).get_by_role("button", name="Apply").click()
            wait_until(lambda: asked_for().get("log_every") == 25, timeout_s=60)
        else:
            # Another box is a new one: say what follows from its number.
            assert label in _CONTROL["knobs"]
            row = box.locator("xpath=ancestor::*[@data-testid='stHorizontalBlock'][1]")
            row.get_by_role("button", name="Set", exact=True).click()
            wait_until(lambda: asked_for().get("knobs", {}).get(label) == 25, timeout_s=60)

    shown.open(page, "/overview", run="steered")
    refresh_every(page, "Off")
    links = page.locator('[data-testid="stSidebarNavLink"]')
    every_page = links.evaluate_all("all => all.map(link => link.pathname)")
    pages = longer([page for page in every_page if page in ("/overview", "/alerts")], every_page)
    tried = set()
    for address in pages:
        shown.open(page, address, run="steered")
        while (closed := page.locator('[data-testid="stExpander"] details:not([open]) summary')).count():
            closed.first.click()
            settle(page)
        for box in page.locator('[data-testid="stNumberInputField"]').all():
            label = str(box.get_attribute("aria-label"))
            if label not in tried:
                has_effect_of(label, box)
            tried.add(label)
        # Names are not escaped where they are read aloud.
        expect(page.locator(':is(input, [role="slider"])[aria-label*="\\\\"]')).to_have_count(0)
    assert tried == {"steps", "lr_scale", "early_stop", "For records"}
