"""How long a browser takes to show the curves of a run, compared with an empty page and the pages of other tools."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

from benchmarks import served
from benchmarks.browser import (
    PAINTED,
    PATIENCE_S,
    TABLE,
    TITLE,
    UNCOVERED,
    Cost,
    fresh_page,
    seconds_until,
    seconds_until_curves,
    wait,
    wait_for_curves,
)
from benchmarks.command import say
from benchmarks.dashboard_parts import Part, Plan
from benchmarks.dashboard_peers import PEERS
from benchmarks.large_run import write_finished_run, write_many_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FEW_RECORDS = 500
_COMPARED, _COMPARED_RECORDS = 20, 2_000
_WARM, _COLD_FIRST, _COLD, _COMPARE = 1.4, 1.6, 4.0, 1.6
_PAINTED, _ANSWERS, _ANSWERS_AGAIN = 0.5, 1.4, 1.6
"""What opening may cost, as a multiple of the empty page of the same round."""
_MOST_REQUESTS, _MOST_LOADED_KB, _MOST_SHIFT = 80, 1400.0, 0.05
_MOST_MB = 700.0
_FEW, _MANY = 10, 1_000
_MOST_TIMES = 2.0
"""What a list of many runs may cost against one of few."""


def measure(browser: Browser, plan: Plan, folder: Path, part: Part) -> None:
    """Open each page in a fresh server and browser context, one after the other in each round."""
    peers = [peer for peer in PEERS if not peer.contender.missing]
    taken: defaultdict[str, list[float]] = defaultdict(list)
    say(f"open: writing a run of {plan.records:,} records")
    write_finished_run(folder / "logs", "run", plan.records)
    write_finished_run(folder / "small", "run", _FEW_RECORDS)
    write_many_runs(folder / "many", _COMPARED, records=_COMPARED_RECORDS)
    for peer in peers:
        peer.write(folder / peer.contender.name, _FEW_RECORDS)
    keys = ",".join(path.name for path in sorted((folder / "many").iterdir()))
    for number in range(plan.rounds):
        say(f"open, round {number + 1} of {plan.rounds}")
        with served.empty_page(folder / "empty") as server, fresh_page(browser) as page:
            cost = Cost(page)
            taken["empty"].append(seconds_until(page, server.url, TITLE))
            taken["empty_requests"].append(cost.requests)
            taken["empty_again"].append(seconds_until(page, server.url, TITLE))
        _open_small(browser, folder, taken)
        for peer in peers:
            seconds = peer.open(browser, folder / peer.contender.name, folder / "peer-home")
            taken[peer.contender.name].append(seconds)
        with served.dashboard(folder / "many", folder / "many-home") as server, fresh_page(browser) as page:
            address = f"{server.url}/compare?runs={keys}"
            taken["compare"].append(seconds_until_curves(page, address, curves=_COMPARED))
        # A separate home with an empty cache. The second server finds what the first one cached.
        home = folder / f"home-{number}"
        for how in ("cold", "warm"):
            with served.dashboard(folder / "logs", home) as server, fresh_page(browser) as page:
                began = time.perf_counter()
                first = seconds_until_curves(page, f"{server.url}/overview?run=run")
                wait_for_curves(page, points=plan.records)
                taken[how].append(time.perf_counter() - began)
                taken[f"{how}_first"].append(first)
                taken[f"{how}_rss_mb"].append(server.rss_mb)
                taken["start"].append(server.start_s)
                # The columns are saved in the background.
                page.wait_for_timeout(3000)
    _report(plan, taken, part)


def _open_small(browser: Browser, folder: Path, taken: defaultdict[str, list[float]]) -> None:
    with served.dashboard(folder / "small", folder / "small-home") as server:
        address = f"{server.url}/overview?run=run"
        # A server that has just been started draws no first screen yet.
        until = time.monotonic() + PATIENCE_S
        while b'<path class="grid' not in urlopen(address).read() and time.monotonic() < until:
            time.sleep(0.5)
        with fresh_page(browser) as page:
            cost = Cost(page)
            for again in ("", "_again"):
                began = time.perf_counter()
                taken[f"painted{again}"].append(seconds_until(page, address, PAINTED))
                wait_for_curves(page)
                wait(page, UNCOVERED)
                taken[f"answers{again}"].append(time.perf_counter() - began)
                if not again:
                    taken["requests"].append(cost.requests)
                    taken["received"].append(cost.received_kb)
                    page.wait_for_timeout(3000)
                    taken["shift"].append(cost.shift)


def _report(plan: Plan, taken: Mapping[str, list[float]], part: Part) -> None:
    large, few = f"{plan.records:,} records", f"first curve of {_FEW_RECORDS:,} records"
    part.add("an empty Streamlit page", taken["empty"], "s")
    part.add("the same, again in the same browser", taken["empty_again"], "s")
    for what, name, limit in (
        (f"{few}, seen", "painted", _PAINTED),
        (f"{few}, seen, again in the same browser", "painted_again", _PAINTED),
        (f"{few}, answers the mouse", "answers", _ANSWERS),
        (f"{few}, answers the mouse, again in the same browser", "answers_again", _ANSWERS_AGAIN),
        (f"whole curve of {large}, columns cached", "warm", _WARM),
        (f"first curve of {large}, cold", "cold_first", _COLD_FIRST),
        (f"whole curve of {large}, cold", "cold", _COLD),
        (f"all curves of {_COMPARED} runs on Compare", "compare", _COMPARE),
    ):
        part.add(what, taken[name], "s")
        part.add_ratio(what, taken[name], taken["empty_again" if name.endswith("_again") else "empty"], limit)
    for peer in PEERS:
        title, missing = peer.contender.title, peer.contender.missing
        if missing:
            part.notes.append(f"{title}: not measured, {' and '.join(missing)} not installed")
        else:
            part.add(f"{title}: {few}", taken[peer.contender.name], "s")
            part.add_ratio(f"{title}: {few}", taken[peer.contender.name], taken["empty"])
    part.add("requests of an empty Streamlit page", taken["empty_requests"], "")
    part.add("the server's own start, before the page is requested", taken["start"], "s")
    part.add("requests up to the first curve", taken["requests"], "", _MOST_REQUESTS)
    part.add("received up to the first curve", taken["received"], "kB", _MOST_LOADED_KB)
    part.add("layout shift until the page is complete", taken["shift"], "", _MOST_SHIFT)
    part.add("memory of the server after opening, cold", taken["cold_rss_mb"], "MB", _MOST_MB)
    part.notes.append(
        "opening: from the request until the loss is drawn, in a fresh server process and a browser context with an "
        "empty cache; whole: with every point counted; cold: with an empty cache of columns"
    )


def measure_lists(browser: Browser, plan: Plan, folder: Path, part: Part) -> None:
    """Open the list in a fresh server, then again in the same server, with few runs and with many."""
    taken: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    opened = ("first page of a fresh server", "a page after that")
    say(f"runs: writing {_FEW} and {_MANY:,} of them")
    for runs in (_FEW, _MANY):
        write_many_runs(folder / str(runs), runs)
    for number in range(plan.list_rounds):
        say(f"runs, round {number + 1} of {plan.list_rounds}")
        for runs in (_FEW, _MANY):
            with served.dashboard(folder / str(runs), folder / f"home-{runs}-{number}") as server:
                for words in opened:
                    with fresh_page(browser) as page:
                        taken[words, runs].append(seconds_until(page, server.url, TABLE))
    for words in opened:
        for runs in (_FEW, _MANY):
            part.add(f"the list of {runs:,} runs, {words}", taken[words, runs], "s")
        ratio = statistics.median(taken[words, _MANY]) / statistics.median(taken[words, _FEW])
        part.add(f"the list of {_MANY:,} runs against {_FEW}, {words}", [ratio], "x", _MOST_TIMES)
