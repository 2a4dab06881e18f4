"""How long a browser takes to show all of a large run, the first time and the second."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import Loading, fresh_page, seconds_until_all_points, seconds_until_title
from benchmarks.child import measure_in_child
from benchmarks.command import say
from benchmarks.dashboard_part import Part, Plan
from benchmarks.large_run import write_finished_run
from benchmarks.report import Claim

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_SECONDS_ON_TOP = 2.0
_FEW_RECORDS = 500
_MOST_REQUESTS, _MOST_LOADED_MB, _MOST_SHIFT = 130, 2.5, 0.6
_MOST_MB = 700.0


def measure(browser: Browser, plan: Plan) -> Part:
    """Open a run of `plan.records` steps, and an empty page, in fresh servers and browser contexts."""
    empty: list[float] = []
    small: list[float] = []
    weight: dict[str, list[float]] = {"requests": [], "loaded_mb": [], "shift": []}
    cold: list[float] = []
    warm: list[float] = []
    start: list[float] = []
    memory_mb: list[float] = []
    read: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say(f"open: writing a run of {plan.records:,} records")
        write_finished_run(folder / "logs", "run", plan.records)
        write_finished_run(folder / "small", "run", _FEW_RECORDS)
        for number in range(plan.rounds):
            say(f"open, round {number + 1} of {plan.rounds}")
            with served.empty_page(folder / "empty") as server, fresh_page(browser) as page:
                empty.append(seconds_until_title(page, server.url))
            with (
                served.dashboard(folder / "small", folder / "small-home") as server,
                fresh_page(browser) as page,
            ):
                loading = Loading(page)
                small.append(seconds_until_all_points(page, f"{server.url}/overview?run=run", _FEW_RECORDS))
                requests, loaded_mb = loading.so_far
                page.wait_for_timeout(3000)
                for name, value in zip(weight, (requests, loaded_mb, loading.shift()), strict=True):
                    weight[name].append(value)
            for taken in read.values():
                cache = folder / f"cache-{number}"
                taken.append(measure_in_child(seconds_of_reading, str(folder / "logs"), str(cache)))
            # A separate home with an empty cache. The second server finds what the first one cached.
            home = folder / f"home-{number}"
            for taken in (cold, warm):
                with served.dashboard(folder / "logs", home) as server, fresh_page(browser) as page:
                    address = f"{server.url}/overview?run=run"
                    taken.append(seconds_until_all_points(page, address, plan.records))
                    start.append(server.start_s)
                    if taken is cold:
                        memory_mb.append(server.rss_mb)

    part = Part()
    middle = part.add("an empty Streamlit page", empty, "s")
    part.add(f"overview of {_FEW_RECORDS:,} records", small, "s")
    requests_made = part.add("requests up to its first curve", weight["requests"], "")
    loaded = part.add("received up to its first curve", weight["loaded_mb"], "MB")
    shift = part.add("layout shift until it is complete", weight["shift"], "")
    cold_s = part.add(f"overview of {plan.records:,} records, cold", cold, "s")
    warm_s = part.add(f"overview of {plan.records:,} records, columns cached", warm, "s")
    part.add("the same without a page: all curves built, cold", read["cold"], "s")
    part.add("the same without a page, columns cached", read["warm"], "s")
    rss_mb = part.add("memory of the server after opening, cold", memory_mb, "MB")
    part.add("the server's own start, before the page is requested", start, "s")
    part.figures.update(
        {
            "empty_s": empty,
            "small_s": small,
            "small_to_empty": [ours / theirs for ours, theirs in zip(small, empty, strict=True)],
            **weight,
            "cold_s": cold,
            "warm_s": warm,
            "read_s": read,
            "rss_mb": memory_mb,
            "start_s": start,
        }
    )
    allowed = middle + _SECONDS_ON_TOP
    part.claims += [
        Claim(text="requests up to the first curve", measured=requests_made, limit=_MOST_REQUESTS, unit=""),
        Claim(text="received up to the first curve", measured=loaded, limit=_MOST_LOADED_MB, unit=" MB"),
        Claim(text="layout shift of an Overview", measured=shift, limit=_MOST_SHIFT, unit=""),
        Claim(
            text="opening, cold, against 4 x (empty page + 2 s)",
            measured=cold_s,
            limit=4 * allowed,
            unit=" s",
        ),
        Claim(
            text="opening, columns cached, against empty page + 2 s",
            measured=warm_s,
            limit=allowed,
            unit=" s",
        ),
        Claim(text="memory of the server after opening", measured=rss_mb, limit=_MOST_MB, unit=" MB"),
    ]
    part.notes.append(
        "opening: from the request until the loss is drawn with every point counted, in a fresh server process "
        "and a browser context with an empty cache; cold means an empty cache"
    )
    return part


def seconds_of_reading(folder: Path, logs: str, cache: str) -> float:
    """Return how long the store takes to build every curve of the run, in a fresh process."""
    del folder
    from toolkit.runs.sources.local_store import LocalStore

    began = time.perf_counter()
    store = LocalStore([Path(logs)], cache_dir=Path(cache))
    store.refresh("run", wait_s=600.0)
    for metric in store.metrics("run"):
        store.series("run", metric.name)
    taken = time.perf_counter() - began
    # The next measurement needs the columns that are being saved now.
    store.wait_until_saved(60.0)
    return taken
