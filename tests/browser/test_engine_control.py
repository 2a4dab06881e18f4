"""A live run on a page over the engine: it is steered from there, and stays there while the engine does not answer."""

from __future__ import annotations

import re
import signal

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import (
    Dashboard,
    refresh_every,
    settle,
    sidebar,
    status,
    step_shown,
    wait_until_step,
)
from tests.browser.growing_run import Training
from tests.dashboard.serving import dashboard
from tests.fleet.conftest import started
from tests.fleet.requests_to_runs import start_shipper
from tests.fleet.shipped_runs import id_of
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.telemetry.fleet.engine import Engine, quote
from toolkit.telemetry.fleet.schema import set_up

# tests/fleet/test_courier.py steers a run in `make test`.
pytestmark = in_make_faults


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    for one in started(tmp_path_factory.mktemp("engine")):
        set_up(one.address())
        yield one


@pytest.fixture(scope="module")
def shown(engine, tmp_path_factory):
    """A dashboard over the engine, and a shipper that delivers its requests."""
    place = tmp_path_factory.mktemp("fleet")
    logs = place / "logs"
    logs.mkdir()
    shipper = start_shipper(engine, logs)
    process = dashboard(tmp_path_factory.mktemp("dashboard"), "--store", str(engine.address()))
    try:
        process.wait_until_ready()
        yield Dashboard(process, logs)
    finally:
        process.__exit__()
        shipper.kill()
        shipper.communicate()


@pytest.fixture
def training(engine, shown, tmp_path):
    with Training(shown.root, "live", tmp_path) as training:
        connection, run_id = Engine(engine.address()), id_of(training.folder)
        known = f"SELECT count() FROM runs WHERE run_id = {quote(run_id)} AND control = 'yes'"
        wait_until(lambda: connection.rows(known) != [(0,)], shown.process.process)
        connection.close()
        yield run_id


def test_a_run_is_steered_and_its_answers_are_shown(shown, training, page):
    shown.open(page, "/overview", run=training)
    refresh_every(page, "2 s")
    side = sidebar(page)
    side.get_by_role("button", name=re.compile("Save$")).click()
    expect(side.get_by_text("save: applied at step")).to_be_visible()
    side.get_by_role("spinbutton").fill("60")
    page.keyboard.press("Tab")
    side.get_by_role("button", name="Apply").click()
    expect(side.get_by_text("log every 60: applied at step")).to_be_visible()
    expect(side.get_by_text("(5 → 60)")).to_be_visible()
    expect(side.get_by_text("Logs every 60 steps.")).to_be_visible()
    settle(page)
    side.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_test_id("stPopoverBody").get_by_role("button", name="Stop").click()

    expect(status(page)).to_contain_text("Stopped")
    expect(side.get_by_role("button", name="Apply")).to_have_count(0)


def test_an_open_page_says_since_when_the_engine_is_silent_and_goes_on(engine, shown, training, page):
    shown.open(page, "/overview", run=training)
    refresh_every(page, "2 s")
    wait_until_step(page, 5)
    engine.process.send_signal(signal.SIGSTOP)
    try:
        silent = page.get_by_text("The engine has not answered since")
        expect(silent.first).to_be_visible()
        held = step_shown(page)
        assert held >= 5
        expect(sidebar(page).get_by_text("The engine does not answer now")).to_be_visible()
        # What was read before is still there, and other pages open.
        sidebar(page).get_by_role("link", name="Metrics").click()
        expect(page.locator(".telemetry-curves").first).to_be_visible()
    finally:
        engine.process.send_signal(signal.SIGCONT)
    expect(silent).to_have_count(0)
    wait_until_step(page, held + 20)
