"""What an open page of a live run costs: time, bytes and memory per refresh, and work of the browser."""

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
from benchmarks.report import Claim

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_EVERY_S = 5.0
"""The interval that a page has at first."""
_RECORDS_A_REFRESH = 100
_MOST_MS, _MOST_KB, _MOST_TIMES, _MOST_MB = 50.0, 20.0, 3.0, 700.0
_FIRST_LEFT_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The cost of one refresh."""

    cpu_ms: float
    """Of all threads of the server."""
    wall_ms: float
    """Wall time of the threads that compute the page."""
    thread_cpu_ms: float
    """Processor time of those threads; far below the wall time if the machine was busy."""
    computed: int
    """How many regions of the page were computed."""
    received_kb: float
    """Over the WebSocket and by requests."""
    main_thread_ms: float
    """Work of the browser's thread that draws the page."""
    rss_mb: float


def measure(browser: Browser, plan: Plan, *, costs: bool = True, memory: bool = True) -> Part:
    """Keep a live run's overview open, and append 100 records before each refresh; then a finished run's."""
    say(f"refresh: writing a live run of {plan.records:,} records")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name,
        LiveRun(Path(name) / "logs", "run", plan.records) as run,
        served.dashboard(Path(name) / "logs", Path(name) / "home", times=Path(name) / "times") as server,
    ):
        write_finished_run(Path(name) / "logs", "ended", plan.records)
        # A heartbeat, or else the run would count as stalled by now.
        run.log(_RECORDS_A_REFRESH)
        with fresh_page(browser) as page:
            loading = Loading(page)
            seconds_until_curves(page, f"{server.url}/overview?run=run", points=run.records)
            page.wait_for_timeout(_FIRST_LEFT_OUT * _EVERY_S * 1000)
            opened_mb = server.rss_mb
            say(f"refresh: {plan.refreshes} of them, {_EVERY_S:g} s apart")
            found = _refreshes(page, server, run, loading, Path(name) / "times", plan.refreshes)
            # The page must have refreshed in between.
            wait_for_curves(page, points=run.records)
        with fresh_page(browser) as page:
            seconds_until_curves(page, f"{server.url}/overview?run=ended", points=plan.records)
            page.wait_for_timeout(_FIRST_LEFT_OUT * _EVERY_S * 1000)
            periods = max(1, plan.refreshes // 2)
            thread, cpu_s = MainThread(page), server.cpu_s
            busy_ms = thread.busy_ms
            page.wait_for_timeout(periods * _EVERY_S * 1000)
            still_ms = (thread.busy_ms - busy_ms) / periods
            idle_ms = (server.cpu_s - cpu_s) * 1000 / periods
    return _report(found, opened_mb, still_ms, idle_ms, plan, costs=costs, memory=memory)


def _refreshes(
    page: Page, server: served.Served, run: LiveRun, loading: Loading, times: Path, count: int
) -> list[Refresh]:
    found = []
    thread = MainThread(page)
    due = time.monotonic()
    seen, cpu_s, busy_ms = len(_computed_ms(times)), server.cpu_s, thread.busy_ms
    loading.forget()
    for _ in range(count):
        run.log(_RECORDS_A_REFRESH)
        due += _EVERY_S
        # Each region of the page has its own timer: in one period each refreshes once.
        while (left := due - time.monotonic()) > 0:
            page.wait_for_timeout(left * 1000)
        computed, cpu_before, busy_before = _computed_ms(times)[seen:], cpu_s, busy_ms
        cpu_s, busy_ms = server.cpu_s, thread.busy_ms
        seen += len(computed)
        found.append(
            Refresh(
                cpu_ms=(cpu_s - cpu_before) * 1000,
                wall_ms=sum(wall for wall, _ in computed),
                thread_cpu_ms=sum(cpu for _, cpu in computed),
                computed=len(computed),
                received_kb=loading.forget(),
                main_thread_ms=busy_ms - busy_before,
                rss_mb=server.rss_mb,
            )
        )
    return found


def _computed_ms(times: Path) -> list[tuple[float, float]]:
    lines = times.read_text(encoding="ascii").splitlines()
    return [(float(wall), float(cpu)) for wall, cpu in (line.split() for line in lines)]


def _report(
    found: list[Refresh],
    opened_mb: float,
    still_ms: float,
    idle_ms: float,
    plan: Plan,
    *,
    costs: bool,
    memory: bool,
) -> Part:
    part = Part()
    part.figures["each"] = [{name: round(value, 2) for name, value in asdict(one).items()} for one in found]
    if costs:
        cpu_ms = part.add("a refresh: processor time of the server", [one.cpu_ms for one in found], "ms")
        part.add("the same time with the page of a finished run", [idle_ms], "ms")
        wall_ms = part.add("a refresh: computing the page, wall time", [one.wall_ms for one in found], "ms")
        own_ms = part.add(
            "a refresh: computing the page, processor time", [one.thread_cpu_ms for one in found], "ms"
        )
        sent_kb = part.add("a refresh: received by the browser", [one.received_kb for one in found], "kB")
        busy_ms = part.add(
            "a refresh: the browser's main thread", [one.main_thread_ms for one in found], "ms"
        )
        part.add("the same time of a finished run's page", [still_ms], "ms")
        times = part.add("a refresh: main thread, against a finished run", [busy_ms / still_ms], "x")
        part.figures.update(
            {"cpu_ms": cpu_ms, "wall_ms": wall_ms, "thread_cpu_ms": own_ms, "received_kb": sent_kb}
            | {"main_thread_ms": busy_ms, "finished_ms": still_ms, "idle_cpu_ms": idle_ms}
        )
        part.claims += [
            Claim(
                text="processor time of the server per refresh", measured=cpu_ms, limit=_MOST_MS, unit=" ms"
            ),
            Claim(text="received by the browser per refresh", measured=sent_kb, limit=_MOST_KB, unit=" kB"),
            Claim(
                text="main thread per refresh, against a finished run",
                measured=times,
                limit=_MOST_TIMES,
                unit="x",
            ),
        ]
        part.notes.append(
            f"a refresh: a live run of {plan.records:,} records, {_RECORDS_A_REFRESH} appended, "
            f"one period of {_EVERY_S:g} s with all of the overview"
        )
    if memory:
        rss_mb = [one.rss_mb for one in found]
        slope = statistics.linear_regression(range(len(rss_mb)), rss_mb).slope * 100
        part.add("memory of the server, live run opened", [opened_mb], "MB")
        part.add(f"memory of the server over {len(found)} refreshes", rss_mb, "MB")
        part.add("its growth in 100 refreshes (slope)", [slope], "MB")
        part.figures.update({"opened_mb": opened_mb, "mb_per_100_refreshes": slope, "most_mb": max(rss_mb)})
        part.claims.append(
            Claim(
                text="memory of the server during refreshes", measured=max(rss_mb), limit=_MOST_MB, unit=" MB"
            )
        )
    return part
