"""What an open page of a live run costs the server: time, bytes and memory per refresh."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import served
from benchmarks.browser import fresh_page, seconds_until_all_points, wait_for_all_points
from benchmarks.command import say
from benchmarks.dashboard_part import Part, Plan
from benchmarks.large_run import LiveRun
from benchmarks.report import Claim

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_EVERY_S = 2.0
_RECORDS_A_REFRESH = 100
_MOST_MS, _MOST_KB, _MOST_MB = 250.0, 150.0, 700.0
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
    rss_mb: float


def measure(browser: Browser, plan: Plan, *, costs: bool = True, memory: bool = True) -> Part:
    """Keep a live run's overview open with a refresh every 2 s, and append 100 records before each."""
    say(f"refresh: writing a live run of {plan.records:,} records")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name,
        LiveRun(Path(name) / "logs", "run", plan.records) as run,
        served.dashboard(Path(name) / "logs", Path(name) / "home", times=Path(name) / "times") as server,
        fresh_page(browser) as page,
    ):
        # A heartbeat, or else the run would count as stalled by now.
        run.log(_RECORDS_A_REFRESH)
        stream = _Stream(page)
        seconds_until_all_points(page, f"{server.url}/overview?run=run", run.records)
        page.get_by_text("2 s", exact=True).first.click()
        page.wait_for_timeout(_FIRST_LEFT_OUT * _EVERY_S * 1000)
        opened_mb = server.rss_mb
        say(f"refresh: {plan.refreshes} of them, {_EVERY_S:g} s apart")
        found = _refreshes(page, server, run, stream, Path(name) / "times", plan.refreshes)
        # The page must have refreshed in between.
        wait_for_all_points(page, run.records)
    return _report(found, opened_mb, plan, costs=costs, memory=memory)


def _refreshes(
    page: Page, server: served.Served, run: LiveRun, stream: _Stream, times: Path, count: int
) -> list[Refresh]:
    found = []
    due = time.monotonic()
    seen, cpu_s = len(_computed_ms(times)), server.cpu_s
    stream.forget()
    for _ in range(count):
        run.log(_RECORDS_A_REFRESH)
        due += _EVERY_S
        # Each region of the page has its own timer: in one period each refreshes once.
        while (left := due - time.monotonic()) > 0:
            page.wait_for_timeout(left * 1000)
        computed, cpu_before = _computed_ms(times)[seen:], cpu_s
        cpu_s = server.cpu_s
        seen += len(computed)
        found.append(
            Refresh(
                cpu_ms=(cpu_s - cpu_before) * 1000,
                wall_ms=sum(wall for wall, _ in computed),
                thread_cpu_ms=sum(cpu for _, cpu in computed),
                computed=len(computed),
                received_kb=stream.forget() / 1e3,
                rss_mb=server.rss_mb,
            )
        )
    return found


def _computed_ms(times: Path) -> list[tuple[float, float]]:
    lines = times.read_text(encoding="ascii").splitlines()
    return [(float(wall), float(cpu)) for wall, cpu in (line.split() for line in lines)]


class _Stream:
    """Counts the bytes that the page receives over its WebSocket."""

    def __init__(self, page: Page) -> None:
        self._bytes = 0
        session = page.context.new_cdp_session(page)
        session.on("Network.webSocketFrameReceived", self._note)
        session.send("Network.enable")

    def _note(self, event: Any) -> None:
        # Binary frames come as base64.
        self._bytes += len(event["response"]["payloadData"]) * 3 // 4

    def forget(self) -> int:
        """Return the bytes received since the last call."""
        received, self._bytes = self._bytes, 0
        return received


def _report(found: list[Refresh], opened_mb: float, plan: Plan, *, costs: bool, memory: bool) -> Part:
    part = Part()
    part.figures["each"] = [{name: round(value, 2) for name, value in asdict(one).items()} for one in found]
    if costs:
        cpu_ms = part.add("a refresh: processor time of the server", [one.cpu_ms for one in found], "ms")
        wall_ms = part.add("a refresh: computing the page, wall time", [one.wall_ms for one in found], "ms")
        own_ms = part.add(
            "a refresh: computing the page, processor time", [one.thread_cpu_ms for one in found], "ms"
        )
        sent_kb = part.add("a refresh: sent to the browser", [one.received_kb for one in found], "kB")
        part.figures.update(
            {"cpu_ms": cpu_ms, "wall_ms": wall_ms, "thread_cpu_ms": own_ms, "received_kb": sent_kb}
        )
        part.claims += [
            Claim(
                text="processor time of the server per refresh", measured=cpu_ms, limit=_MOST_MS, unit=" ms"
            ),
            Claim(
                text="computing the page per refresh, wall time",
                measured=wall_ms,
                limit=_MOST_MS,
                unit=" ms",
                # Computing never waits: more than twice its processor time means that other work interfered.
                too_noisy=wall_ms > _MOST_MS >= own_ms and wall_ms > 2 * own_ms,
            ),
            Claim(text="sent to the browser per refresh", measured=sent_kb, limit=_MOST_KB, unit=" kB"),
        ]
        part.notes.append(
            f"a refresh: a live run of {plan.records:,} records, {_RECORDS_A_REFRESH} appended, "
            f"one period of {_EVERY_S:g} s with all regions of the overview"
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
