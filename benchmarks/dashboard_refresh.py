"""What an open page of a live run costs: bytes, messages, memory, and work of the server and the browser."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import Loading, MainThread, fresh_page, seconds_until_curves, wait_for_curves
from benchmarks.command import say
from benchmarks.dashboard_part import Part, Plan
from benchmarks.large_run import LiveRun, write_finished_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_EVERY_S = 5.0
"""The interval that a page has at first."""
_RECORDS_A_REFRESH = 100
_MOST_CPU_MS, _MOST_KB, _MOST_MESSAGES, _MOST_THREAD_MS, _MOST_MB = 50.0, 5.0, 4.0, 60.0, 700.0
_FIRST_LEFT_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The cost of one period of `_EVERY_S`, in which each region of the page refreshes once."""

    cpu_ms: float
    """Of all threads of the server."""
    received_kb: float
    """Over the WebSocket and by requests."""
    messages: int
    """Over the WebSocket."""
    main_thread_ms: float
    """Work of the browser's thread that draws the page."""
    rss_mb: float


def measure(browser: Browser, plan: Plan) -> Part:
    """Keep a live run's overview open, and append 100 records before each refresh; then a finished run's."""
    say(f"refresh: writing a live run of {plan.records:,} records")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name,
        LiveRun(Path(name) / "logs", "run", plan.records) as run,
        served.dashboard(Path(name) / "logs", Path(name) / "home") as server,
    ):
        write_finished_run(Path(name) / "logs", "ended", plan.records)
        # A heartbeat, or else the run would count as stalled by now.
        run.log(_RECORDS_A_REFRESH)
        say(f"refresh: {plan.refreshes} of them, {_EVERY_S:g} s apart")
        found = _refreshes(browser, server, "run", plan.refreshes, run)
        still = _refreshes(browser, server, "ended", max(1, plan.refreshes // 2))
    return _report(found, still, plan)


def _refreshes(
    browser: Browser, server: served.Served, name: str, count: int, run: LiveRun | None = None
) -> list[Refresh]:
    """Open a run, then append to it if it is live, and measure each period."""
    found = []
    with fresh_page(browser) as page:
        loading, thread = Loading(page), MainThread(page)
        seconds_until_curves(page, f"{server.url}/overview?run={name}", points=run.records if run else 1)
        page.wait_for_timeout(_FIRST_LEFT_OUT * _EVERY_S * 1000)
        cpu_s, busy_ms, due = server.cpu_s, thread.busy_ms, time.monotonic()
        loading.forget()
        for _ in range(count):
            if run is not None:
                run.log(_RECORDS_A_REFRESH)
            due += _EVERY_S
            _wait_until(page, due)
            cpu_before, busy_before = cpu_s, busy_ms
            cpu_s, busy_ms = server.cpu_s, thread.busy_ms
            received_kb, messages = loading.forget()
            found.append(
                Refresh(
                    cpu_ms=(cpu_s - cpu_before) * 1000,
                    received_kb=received_kb,
                    messages=messages,
                    main_thread_ms=busy_ms - busy_before,
                    rss_mb=server.rss_mb,
                )
            )
        if run is not None:
            # The page must have refreshed in between.
            wait_for_curves(page, points=run.records)
    return found


def _wait_until(page: Page, due: float) -> None:
    while (left := due - time.monotonic()) > 0:
        page.wait_for_timeout(left * 1000)


def _report(found: list[Refresh], still: list[Refresh], plan: Plan) -> Part:
    part = Part()
    part.figures["each"] = [{name: round(value, 2) for name, value in asdict(one).items()} for one in found]
    for text, name, unit, limit in (
        ("processor time of the server", "cpu_ms", " ms", _MOST_CPU_MS),
        ("received by the browser", "received_kb", " kB", _MOST_KB),
        ("messages to the browser", "messages", "", _MOST_MESSAGES),
        ("the browser's main thread", "main_thread_ms", " ms", _MOST_THREAD_MS),
    ):
        part.figures[name] = part.add(f"a refresh: {text}", [getattr(one, name) for one in found], unit)
        part.add(f"the same of a finished run: {text}", [getattr(one, name) for one in still], unit)
        part.claim(f"a refresh: {text}", part.figures[name], limit, unit)
    rss_mb = [one.rss_mb for one in found]
    slope = statistics.linear_regression(range(len(rss_mb)), rss_mb).slope * 100
    part.add(f"memory of the server over {len(found)} refreshes", rss_mb, "MB")
    part.add("its growth in 100 refreshes (slope)", [slope], "MB")
    part.figures.update({"mb_per_100_refreshes": slope, "most_mb": max(rss_mb)})
    part.claim("memory of the server during refreshes", max(rss_mb), _MOST_MB, " MB")
    part.notes.append(
        f"a refresh: a live run of {plan.records:,} records, {_RECORDS_A_REFRESH} appended, "
        f"one period of {_EVERY_S:g} s with all of the overview"
    )
    return part
