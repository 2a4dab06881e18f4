"""The pages over an engine with 12,000 runs, a run of 1,024 ranks, and a run that is being logged."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from benchmarks.fleet_data import RANKED, SLOW_RANK, copy_runs, write_ranked_run
from tests.browser.browser_helpers import Dashboard, wait_for_chart, wait_for_query
from tests.dashboard.serving import dashboard
from tests.fleet.engines import ROOT, NoEngine, start_engine
from tests.fleet.shipped_runs import id_of, make_run, ship
from tests.lengths import in_make_faults
from toolkit.fleet.engine import Engine
from toolkit.fleet.schema import set_up
from toolkit.telemetry import TelemetryLogger

pytestmark = pytest.mark.slow

RUNS = 12_000
SHIPPED = 9


@contextmanager
def fleet(folder, runs=RUNS):
    """An engine with `runs` runs: some shipped from folders, the others copies of a manifest."""
    engine = None
    for name in ("18.16", "26.9"):
        try:
            engine = start_engine(name, folder / "engine")
            break
        except NoEngine as error:
            print(error)
    if engine is None:
        pytest.skip("no ClickHouse")
    try:
        set_up(engine.address(), engine.cluster)
        logs = folder / "logs"
        for number in range(SHIPPED - 1):
            make_run(logs, f"shipped-{number}", lines=200)
        write_ranked_run(logs, 1024, 60)
        ship(engine, logs)
        copy_runs(Engine(engine.address()), runs - SHIPPED)
        yield engine, logs
    finally:
        engine.stop()


def url_of(engine):
    hosts = ",".join(f"{host}:{port}" for host, port in engine.address().hosts)
    return f"clickhouse://{hosts}/{engine.address().database}"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.fixture(scope="module")
def shown(filled, tmp_path_factory):
    engine, logs = filled
    with dashboard(tmp_path_factory.mktemp("dashboard"), "--store", url_of(engine)) as process:
        process.wait_until_ready()
        yield Dashboard(process, logs)


@in_make_faults
def test_twelve_thousand_runs_are_listed_searched_and_compared(shown, page):
    shown.open(page, "/")
    main = page.locator('[data-testid="stMain"]')
    expect(main.get_by_text("12,000 of 12,000 runs")).to_be_visible()

    search = page.get_by_role("searchbox", name="Search")
    search.fill("copy-0777")
    search.press("Enter")
    expect(main.get_by_text("10 of 12,000 runs")).to_be_visible()
    search.fill("shipped-")
    search.press("Enter")
    expect(main.get_by_text("8 of 12,000 runs")).to_be_visible()
    wait_for_query(page, "q.get('q') === 'shipped-'")

    keys = [id_of(shown.root / f"shipped-{number}") for number in (1, 2)]
    shown.open(page, "/compare", runs=",".join(keys))
    found = wait_for_chart(page, "train_loss", "figure.traces.length >= 2")
    names = [trace["name"] for trace in found["traces"]]
    assert any("shipped-1" in name for name in names)
    assert any("shipped-2" in name for name in names)


@in_make_faults
def test_the_slow_one_of_1024_ranks_is_named(shown, page):
    shown.open(page, "/system", run=id_of(shown.root / RANKED))

    main = page.locator('[data-testid="stMain"]')
    expect(main.get_by_text(f"Rank {SLOW_RANK} is the slowest")).to_be_visible()
    expect(main.get_by_text("1,024 ranks")).to_be_visible()


@in_make_faults
def test_a_live_run_grows_on_the_page_through_the_engine(filled, shown, page):
    engine, _ = filled
    logs = shown.root.parent / "live"
    logs.mkdir()
    shipper = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", "ship", str(logs), "--to", url_of(engine)], cwd=ROOT
    )
    try:
        with TelemetryLogger("live", log_dir=logs, log_every=1, flush_interval=0.05, system=False) as log:
            log.log_start()
            for step in range(30):
                log.log_step(step, train_loss=1 / (step + 1))
            log.flush()
            shown.open(page, "/overview", run=log.run_id)
            wait_for_chart(page, "Loss", "figure.traces.some(trace => trace.x.length >= 30)")
            expect(page.get_by_text("running").first).to_be_visible()
            for step in range(30, 60):
                log.log_step(step, train_loss=1 / (step + 1))
            log.flush()
            wait_for_chart(page, "Loss", "figure.traces.some(trace => trace.x.length >= 60)")
        expect(page.get_by_text("finished").first).to_be_visible()
    finally:
        shipper.kill()
        shipper.wait()
