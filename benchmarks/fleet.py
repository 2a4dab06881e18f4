"""A fleet: the cost of shipping and of each answer.

Times of the engine are processor time of its process, a Python process with ClickHouse 26.9 and a small HTTP server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import fleet_engine, fleet_lists
from benchmarks.command import Options, run_alone, say
from benchmarks.fleet_data import write_ranked_run, write_trainer_run
from benchmarks.fleet_lists import Figure
from benchmarks.large_run import write_finished_run, write_many_runs
from benchmarks.report import Claim, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    text: str
    figure: str
    """Name of the figure; of a timed answer, that of its engine time."""
    limit: float | None = None
    unit: str = " ms"
    with_page: bool = False
    """Whether the processor time of the page counts too."""
    scale: float = 1.0

    def value(self, found: Mapping[str, Any]) -> float | None:
        """Return the figure; None where the engine has none."""
        figure = found.get(self.figure)
        if figure is None:
            return None
        if not isinstance(figure, dict):
            return float(figure) * self.scale
        return float(figure["engine_ms"]) + (float(figure["page_ms"]) if self.with_page else 0.0)


def _line(text: str, figure: str, limit: float | None = None, unit: str = " ms", **more: Any) -> _Line:
    return _Line(text=text, figure=figure, limit=limit, unit=unit, **more)


_LINES: Final = (
    _line("take in a value, merges included", "value_us", 10.0, " µs"),
    _line("take in a record of our trainer, 25 numbers", "trainer_us", None, " µs"),
    _line("an insert of 50 records alone, with its commit", "insert", 25.0),
    _line("the same of our trainer", "trainer_insert", 25.0),
    _line("stored of a record of 8 numbers", "bytes", 180.0, " B"),
    _line("stored of a record of our trainer", "trainer_bytes", 350.0, " B"),
    _line("shipper: a record of 8 numbers, in bulk", "ship_us", 45.0, " µs"),
    _line("shipper: a record of our trainer, in bulk", "trainer_ship_us", None, " µs"),
    _line("shipper at 100 records/s, of a core", "ship_share", 1.0, " %", scale=100.0),
    _line("a run of {records:,} records, read at first", "rows"),
    _line("the same, page included", "rows", with_page=True),
    _line("a curve of it then, page included", "curve", 500.0, with_page=True),
    _line("compare 8 runs, read at first", "compare", 150.0),
    _line("group of 50 runs, read at first", "group", 600.0),
    _line("1,024 ranks in 128 cells", "ranks_128", 400.0),
    _line("1,024 ranks in 50 cells, the slowest named", "ranks_50", 120.0),
    _line("newest 200 events", "events", 100.0),
    _line("newest 200 events of {records:,} records", "events_large", 200.0),
    _line("record until a page can show it, p50, by the clock", "to_page_p50_s", None, " s"),
    _line("record until a page can show it, p99, by the clock", "to_page_p99_s", 5.0, " s"),
    _line("request to answer on a page, p99, by the clock", "request_p99_s", 10.0, " s"),
    _line("{jobs} shippers stopped as their job ends: lines not shipped", "drain_behind", 0.0, ""),
    _line("the same: runs with a wrong status", "drain_wrong", 0.0, ""),
    _line("the same: longest stop, by the clock", "drain_s", 20.0, " s"),
    _line("lag next to a run of {records:,} records that ends, p99", "large_lag_p99_s", 3.0, " s"),
    _line("four shippers of one directory, times one", "four_shippers_times", 1.3, ""),
    _line("idle with {runs:,} finished runs, of a core", "idle_share", 1.0, " %", scale=100.0),
    _line("idle with {runs:,} finished runs, calls by file name a second", "idle_calls", 1000.0, ""),
)
_LIST_LIMITS_MS: Final = {12_000: 40.0, 200_000: 120.0, 1_000_000: 300.0}
"""Of the engine, for a first page, a search or a sort of so many runs; the dashboard has 60."""
_PAGE_MS: Final = 60.0


def build(options: Options) -> Report:
    """Write the runs, then fill and ask each engine."""
    plan = (
        {
            "repeats": 5,
            "runs": 600,
            "live_s": 20,
            "requests": 2,
            "records": 20_000,
            "ranks": 1024,
            "small": 52,
            "jobs": 3,
            "listed": 12_000,
        }
        if options.quick
        else {
            "repeats": 6,
            "runs": 12_000,
            "live_s": 30,
            "requests": 10,
            "records": 200_000,
            "ranks": 1024,
            "small": 64,
            "jobs": 15,
            "listed": 1_000_000,
        }
    )
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say("writing the runs")
        logs = {kind: folder / kind for kind in ("small", "large", "trainer", "ranks")}
        write_many_runs(logs["small"], plan["small"], records=1_100)
        write_finished_run(logs["large"], "run-large", plan["records"])
        write_trainer_run(logs["trainer"], plan["records"] // 10)
        write_ranked_run(logs["ranks"], plan["ranks"], 200)
        found = fleet_engine.measure(logs, plan)
    lists = fleet_lists.measure(tuple(size for size in fleet_lists.SIZES if size <= plan["listed"]))
    return _report(plan, found, lists)


def _report(plan: Mapping[str, int], found: Mapping[str, Any], lists: list[Figure]) -> Report:
    rows, claims = [], []
    for line in _LINES:
        text = line.text.format(**plan)
        value = line.value(found)
        shown = "-" if value is None else f"{_rounded(value)}{line.unit}"
        if value is not None and line.limit is not None:
            claims.append(Claim(text=text, measured=value, limit=line.limit, unit=line.unit))
        rows.append([text, shown, "-" if line.limit is None else f"{line.limit:g}{line.unit}"])
    for one in lists:
        text = f"list of {one.runs:,} runs: {one.question}"
        own = _LIST_LIMITS_MS.get(one.runs)
        limits = f"{own:g} + {_PAGE_MS:g} ms" if own else "-"
        rows.append([text, f"{_rounded(one.engine_ms)} + {_rounded(one.page_ms)} ms", limits])
        for who, value, limit in (("engine", one.engine_ms, own), ("dashboard", one.page_ms, _PAGE_MS)):
            if own:
                claims.append(Claim(text=f"{text}, {who}", measured=value, limit=limit or 0.0, unit=" ms"))
    notes = [
        "times are processor time of the engine, unless they say otherwise",
        (
            f"records of 8 numbers; {plan['small']} runs of 1,100 records, one of {plan['records']:,}, and one of "
            "1,024 ranks with 200 records each, of which rank 617 is a third slower"
        ),
        (
            "lists: engine + dashboard, processor time; the runs are made, by copying rows that the shipper wrote for "
            "500 folders"
        ),
        "a page is tried every 0.5 s for a record; by default it refreshes itself every 5 s, which comes on top",
        "taking in a value: the engine alone, the shipper has its own line",
        f"{found['memory_mb']:,.0f} MB of memory afterwards",
    ]
    return Report(
        name="fleet",
        title="A fleet: shipping, and answers of the engine",
        columns=["what", "ClickHouse 26.9", "limit"],
        rows=rows,
        figures={"plan": dict(plan), "engine": dict(found), "lists": [asdict(one) for one in lists]},
        claims=claims,
        notes=notes,
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


if __name__ == "__main__":
    run_alone(build)
