"""A fleet: the cost of shipping and of each answer.

Times of the engine are processor time of its process, a Python process with ClickHouse 26.9 and a small HTTP server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import fleet_engine, fleet_lists
from benchmarks.command import Options, run_alone, say
from benchmarks.fleet_data import write_ranked_run
from benchmarks.fleet_lists import Figure
from benchmarks.large_run import write_finished_run, write_many_runs
from benchmarks.report import Claim, Report

_LINES: Final = (
    ("take in a value", "value_us", " µs", 10.0),
    # Of this, 20 ms are three inserts into tables that keep nothing: what a process with the engine takes for any.
    ("insert 50 records", "insert", " ms", 40.0),
    ("stored of a record", "bytes", " B", 180.0),
    # So a shipper that catches up sends 16,000 records a second.
    ("shipper: a record", "ship_us", " µs", 60.0),
    ("shipper at 100 records/s", "ship_share", " %", 1.0),
    ("{records:,} records, with the page", "rows", " ms", None),
    ("their curve, with the page", "curve", " ms", 500.0),
    ("their newest 200 events", "events", " ms", 200.0),
    ("compare 8 new runs", "compare", " ms", 150.0),
    ("group of 50 new runs", "group", " ms", 600.0),
    # A page of ranks asks five such questions: one second of the engine.
    ("slowest of 1,024 ranks", "ranks", " ms", 200.0),
    ("record to page, p99*", "to_page_p99_s", " s", 5.0),
    ("request to answer, p99*", "request_p99_s", " s", 10.0),
    ("{jobs} drains: lines left, wrong statuses", "drain_wrong", "", 0.0),
    ("longest drain*", "drain_s", " s", 20.0),
    ("lag beside {records:,} records, p99*", "large_lag_p99_s", " s", 3.0),
    ("four shippers, times one", "four_shippers_times", "", 1.3),
    ("idle, {runs:,} finished runs", "idle_share", " %", 1.0),
)
"""What, the name of the figure, its unit, and the limit."""
_AGAIN: Final = "the same again"
_LIST_LIMITS_MS: Final = {12_000: 200.0, 1_000_000: 1_000.0}
"""Of the engine, for a list that someone asks for, such as a search."""
_AGAIN_LIMITS_MS: Final = {12_000: 50.0, 1_000_000: 500.0}
"""For what an open page asks for every 5 s, or after five times as long as the answer took."""
_PAGE_MS: Final = 60.0
_FULL: Final = {"repeats": 6, "runs": 12_000, "live_s": 30, "requests": 10, "records": 200_000}
_QUICK: Final = {"repeats": 5, "runs": 600, "live_s": 20, "requests": 2, "records": 20_000}


def build(options: Options) -> Report:
    """Write the runs, then fill and ask the engine."""
    plan = {**_QUICK, "small": 52, "jobs": 3} if options.quick else {**_FULL, "small": 64, "jobs": 15}
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say("writing the runs")
        logs = {kind: folder / kind for kind in ("small", "large", "ranks")}
        write_many_runs(logs["small"], plan["small"], records=1_100)
        write_finished_run(logs["large"], "run-large", plan["records"])
        write_ranked_run(logs["ranks"], 1024, 200)
        found = fleet_engine.measure(logs, plan)
    return _report(plan, found, fleet_lists.measure(fleet_lists.SIZES[: 1 if options.quick else None]))


def _report(plan: Mapping[str, int], found: Mapping[str, float], lists: list[Figure]) -> Report:
    rows, claims = [], []
    for words, name, unit, limit in _LINES:
        text, value = words.format(**plan), found[name] * (100.0 if unit == " %" else 1.0)
        rows.append([text, f"{_rounded(value)}{unit}", "-" if limit is None else f"{limit:g}{unit}"])
        if limit is not None:
            claims.append(Claim(text=text, measured=value, limit=limit, unit=unit))
    for question in dict.fromkeys(one.question for one in lists):
        costs = [one for one in lists if one.question == question]
        limits = _AGAIN_LIMITS_MS if question == _AGAIN else _LIST_LIMITS_MS
        measured = " / ".join(f"{_rounded(one.engine_ms)} + {_rounded(one.page_ms)}" for one in costs)
        allowed = " / ".join(f"{limits[one.runs]:g}" for one in costs)
        rows.append([f"list: {question}", f"{measured} ms", f"{allowed} + {_PAGE_MS:g} ms"])
        for one in costs:
            which = f"{question} of {one.runs:,} runs"
            claims.append(
                Claim(text=f"{which}, engine", measured=one.engine_ms, limit=limits[one.runs], unit=" ms")
            )
            claims.append(Claim(text=f"{which}, dashboard", measured=one.page_ms, limit=_PAGE_MS, unit=" ms"))
    sizes = " / ".join(f"{size:,}" for size in dict.fromkeys(one.runs for one in lists))
    return Report(
        name="fleet",
        title="A fleet: shipping, and answers of the engine",
        columns=["what", "ClickHouse 26.9", "limit"],
        rows=rows,
        figures={"plan": dict(plan), "engine": dict(found), "lists": [asdict(one) for one in lists]},
        claims=claims,
        notes=[
            "processor time of the engine, or share of a core",
            f"lists of {sizes} runs, copied from 500 folders: engine + dashboard",
            "*by the clock; a page is asked every 0.5 s",
            "records have 8 numbers; merges are included",
        ],
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


if __name__ == "__main__":
    run_alone(build)
