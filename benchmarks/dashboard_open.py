"""How long a browser takes to show the curves of a run, compared with an empty page and the pages of other tools."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from benchmarks import served
from benchmarks.browser import (
    PATIENCE_S,
    Loading,
    fresh_page,
    seconds_until_curves,
    seconds_until_painted,
    seconds_until_title,
    wait_for_curves,
)
from benchmarks.command import say
from benchmarks.dashboard_part import Part, Plan
from benchmarks.dashboard_peers import PEERS
from benchmarks.large_run import write_finished_run, write_many_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FEW_RECORDS = 500
_COMPARED, _COMPARED_RECORDS = 20, 2_000
_WARM, _COLD_FIRST, _COLD, _COMPARE = 1.4, 1.6, 4.0, 1.6
_PAINTED, _ANSWERS, _ANSWERS_AGAIN = 0.5, 1.4, 1.6
"""What opening may cost, as a multiple of the empty page of the same round."""
_MOST_REQUESTS, _MOST_LOADED_MB, _MOST_SHIFT = 80, 1.4, 0.05
_MOST_MB = 700.0


def measure(browser: Browser, plan: Plan) -> Part:
    """Open each page in a fresh server and browser context, one after the other in each round."""
    peers = [peer for peer in PEERS if not peer.contender.missing]
    taken: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say(f"open: writing a run of {plan.records:,} records")
        write_finished_run(folder / "logs", "run", plan.records)
        write_finished_run(folder / "small", "run", _FEW_RECORDS)
        write_many_runs(folder / "many", _COMPARED, records=_COMPARED_RECORDS)
        for peer in peers:
            peer.write(folder / peer.contender.name, _FEW_RECORDS)
        for number in range(plan.rounds):
            say(f"open, round {number + 1} of {plan.rounds}")
            with served.empty_page(folder / "empty") as server, fresh_page(browser) as page:
                loading = Loading(page)
                taken["empty"].append(seconds_until_title(page, server.url))
                taken["empty_requests"].append(loading.so_far[0])
                taken["empty_again"].append(seconds_until_title(page, server.url))
            _open_small(browser, folder, taken)
            for peer in peers:
                seconds = peer.open(browser, folder / peer.contender.name, folder / "peer-home")
                taken[peer.contender.name].append(seconds)
            keys = ",".join(path.name for path in sorted((folder / "many").iterdir()))
            with (
                served.dashboard(folder / "many", folder / "many-home") as server,
                fresh_page(browser) as page,
            ):
                address = f"{server.url}/compare?runs={keys}"
                taken["compare"].append(seconds_until_curves(page, address, curves=_COMPARED))
            # A separate home with an empty cache. The second server finds what the first one cached.
            home = folder / f"home-{number}"
            for is_cold in (True, False):
                with served.dashboard(folder / "logs", home) as server, fresh_page(browser) as page:
                    address = f"{server.url}/overview?run=run"
                    began = time.perf_counter()
                    first = seconds_until_curves(page, address)
                    wait_for_curves(page, points=plan.records)
                    taken["cold" if is_cold else "warm"].append(time.perf_counter() - began)
                    taken["start"].append(server.start_s)
                    if is_cold:
                        taken["cold_first"].append(first)
                        taken["rss_mb"].append(server.rss_mb)
                        # The columns are saved in the background.
                        page.wait_for_timeout(3000)
    return _report(plan, taken)


def _open_small(browser: Browser, folder: Path, taken: defaultdict[str, list[float]]) -> None:
    with served.dashboard(folder / "small", folder / "small-home") as server:
        address = f"{server.url}/overview?run=run"
        # A server that has just been started draws no first screen yet.
        until = time.monotonic() + PATIENCE_S
        while b'<path class="grid' not in urlopen(address).read() and time.monotonic() < until:
            time.sleep(0.5)
        with fresh_page(browser) as page:
            loading = Loading(page)
            for how in ("", "_again"):
                painted, answers = seconds_until_painted(page, address)
                taken[f"painted{how}"].append(painted)
                taken[f"small{how}"].append(answers)
                if not how:
                    requests, loaded_mb = loading.so_far
                    page.wait_for_timeout(3000)
                    shift = loading.shift()
            for name, value in (("requests", requests), ("loaded_mb", loaded_mb), ("shift", shift)):
                taken[name].append(value)


def _report(plan: Plan, taken: Mapping[str, list[float]]) -> Part:
    part = Part()
    empty = taken["empty"]
    large = f"{plan.records:,} records"
    part.add("an empty Streamlit page", empty, "s")
    part.add("the same, again in the same browser", taken["empty_again"], "s")
    few = f"first curve of {_FEW_RECORDS:,} records"
    for what, name, limit in (
        (f"{few}, seen", "painted", _PAINTED),
        (f"{few}, seen, again in the same browser", "painted_again", _PAINTED),
        (f"{few}, answers the mouse", "small", _ANSWERS),
        (f"{few}, answers the mouse, again in the same browser", "small_again", _ANSWERS_AGAIN),
        (f"whole curve of {large}, columns cached", "warm", _WARM),
        (f"first curve of {large}, cold", "cold_first", _COLD_FIRST),
        (f"whole curve of {large}, cold", "cold", _COLD),
        (f"all curves of {_COMPARED} runs on Compare", "compare", _COMPARE),
    ):
        part.add(what, taken[name], "s")
        base = taken["empty_again"] if name.endswith("_again") else empty
        part.add_ratio(what, taken[name], base, limit)
    for peer in PEERS:
        title = peer.contender.title
        if peer.contender.missing:
            part.notes.append(f"{title}: not measured, {' and '.join(peer.contender.missing)} not installed")
            continue
        seconds = taken[peer.contender.name]
        ratios = [one / base for one, base in zip(seconds, empty, strict=True)]
        part.add(f"{title}: first curve of {_FEW_RECORDS:,} records", seconds, "s")
        part.add(f"{title}: first curve, against an empty page", ratios, "x")
    part.add("requests of an empty Streamlit page", taken["empty_requests"], "")
    part.add("the server's own start, before the page is requested", taken["start"], "s")
    counted = ("requests", "empty_requests", "loaded_mb", "shift", "rss_mb")
    part.figures.update({name if name in counted else f"{name}_s": values for name, values in taken.items()})
    for what, name, unit, limit in (
        ("requests up to the first curve", "requests", "", _MOST_REQUESTS),
        ("received up to the first curve", "loaded_mb", " MB", _MOST_LOADED_MB),
        ("layout shift until the page is complete", "shift", "", _MOST_SHIFT),
        ("memory of the server after opening, cold", "rss_mb", " MB", _MOST_MB),
    ):
        part.claim(what, part.add(what, taken[name], unit), limit, unit)
    part.notes.append(
        "opening: from the request until the loss is drawn, in a fresh server process and a browser context with an "
        "empty cache; whole: with every point counted; cold: with an empty cache of columns"
    )
    return part
