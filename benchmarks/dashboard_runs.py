"""How much longer the list takes with a thousand runs than with ten."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import served
from benchmarks.browser import fresh_page, seconds_until_table
from benchmarks.command import say
from benchmarks.dashboard_part import Part, Plan
from benchmarks.large_run import write_many_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FEW, _MANY = 10, 1_000
_MOST_TIMES = 2.0


def measure(browser: Browser, plan: Plan) -> Part:
    """Open the list in a fresh server, then again in the same server, with few runs and with many."""
    first: dict[int, list[float]] = {_FEW: [], _MANY: []}
    again: dict[int, list[float]] = {_FEW: [], _MANY: []}
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say(f"runs: writing {_FEW} and {_MANY:,} of them")
        for runs in (_FEW, _MANY):
            write_many_runs(folder / str(runs), runs)
        for number in range(plan.list_rounds):
            say(f"runs, round {number + 1} of {plan.list_rounds}")
            for runs in (_FEW, _MANY):
                with served.dashboard(folder / str(runs), folder / f"home-{runs}-{number}") as server:
                    for taken in (first, again):
                        with fresh_page(browser) as page:
                            taken[runs].append(seconds_until_table(page, server.url))

    part = Part()
    for words, taken in (("first page of a fresh server", first), ("a page after that", again)):
        for runs in (_FEW, _MANY):
            part.add(f"the list of {runs:,} runs, {words}", taken[runs], "s")
        ratio = statistics.median(taken[_MANY]) / statistics.median(taken[_FEW])
        part.claim(f"the list of {_MANY:,} runs against {_FEW}, {words}", ratio, _MOST_TIMES, "x")
    part.figures.update(
        {
            f"{words}_{runs}_s": taken[runs]
            for words, taken in (("first", first), ("again", again))
            for runs in taken
        }
    )
    return part
