"""What an open page of a live run costs: bytes, messages, memory, and work of the server and the browser."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import Cost, fresh_page, seconds_until_curves, wait_for_curves
from benchmarks.command import say
from benchmarks.dashboard_parts import Part, Plan
from benchmarks.large_run import LiveRun, write_finished_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_EVERY_S = 5.0
"""The interval that a page has at first."""
_RECORDS_A_REFRESH = 100
_COSTS = (
    ("processor time of the server", "ms", 50.0),
    ("received by the browser", "kB", 5.0),
    ("messages to the browser", "", 4.0),
    ("the browser's main thread", "ms", 60.0),
)
"""Of one period of `_EVERY_S`, in which each region of the page refreshes once."""
_MOST_MB = 700.0
_FIRST_LEFT_OUT = 3


def measure(browser: Browser, plan: Plan, folder: Path, part: Part) -> None:
    """Keep a live run's overview open, and append 100 records before each refresh; then a finished run's."""
    say(f"refresh: writing a live run of {plan.records:,} records")
    logs = folder / "logs"
    with LiveRun(logs, "run", plan.records) as run, served.dashboard(logs, folder / "home") as server:
        write_finished_run(logs, "ended", plan.records)
        # A heartbeat, or else the run would count as stalled by now.
        run.log(_RECORDS_A_REFRESH)
        say(f"refresh: {plan.refreshes} of them, {_EVERY_S:g} s apart")
        found = _refreshes(browser, server, "run", plan.refreshes, run)
        still = _refreshes(browser, server, "ended", max(1, plan.refreshes // 2))
    *costs, rss_mb = zip(*found, strict=True)
    for (text, unit, limit), live, ended in zip(_COSTS, costs, zip(*still, strict=True), strict=False):
        part.add(f"a refresh: {text}", live, unit, limit)
        part.add(f"the same of a finished run: {text}", ended, unit)
    slope = statistics.linear_regression(range(len(rss_mb)), rss_mb).slope * 100
    part.add(f"most memory of the server in {len(found)} refreshes", [max(rss_mb)], "MB", _MOST_MB)
    part.add("its growth in 100 refreshes (slope)", [slope], "MB")
    part.notes.append(
        f"a refresh: a live run of {plan.records:,} records, {_RECORDS_A_REFRESH} appended, "
        f"one period of {_EVERY_S:g} s with all of the overview"
    )


def _refreshes(
    browser: Browser, server: served.Served, name: str, count: int, run: LiveRun | None = None
) -> list[tuple[float, ...]]:
    """Open a run, append to it if it is live, and return the costs of each period, with the memory at its end."""
    found = []
    with fresh_page(browser) as page:
        cost = Cost(page)
        seconds_until_curves(page, f"{server.url}/overview?run={name}", points=run.records if run else 1)
        page.wait_for_timeout(_FIRST_LEFT_OUT * _EVERY_S * 1000)

        def so_far() -> tuple[float, ...]:
            return server.cpu_s * 1000, cost.received_kb, cost.messages, cost.busy_ms

        now, due = so_far(), time.monotonic()
        for _ in range(count):
            if run is not None:
                run.log(_RECORDS_A_REFRESH)
            due += _EVERY_S
            while (left := due - time.monotonic()) > 0:
                page.wait_for_timeout(left * 1000)
            before, now = now, so_far()
            found.append((*(end - begin for begin, end in zip(before, now, strict=True)), server.rss_mb))
        if run is not None:
            # The page must have refreshed in between.
            wait_for_curves(page, points=run.records)
    return found
