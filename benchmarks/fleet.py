"""A fleet on two engines in one sitting: the cost of shipping and of each answer.

Times of engines are processor time of all their processes; of ClickHouse 26.9, which runs inside a Python process with
a small HTTP server, that of this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import fleet_engine
from benchmarks.command import Options, run_alone, say
from benchmarks.fleet_data import write_ranked_run
from benchmarks.large_run import write_finished_run, write_many_runs
from benchmarks.report import Claim, Report
from tests.fleet.engines import NoEngine

ENGINES: Final = ("18.16", "26.9")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    text: str
    figure: str
    """Name of the figure; of a timed answer, that of its engine time."""
    limit: float | None = None
    unit: str = " ms"
    limit_of: Mapping[str, float] | None = None
    """Where the limit depends on the engine."""
    with_page: bool = False
    """Whether the processor time of the page counts too."""
    scale: float = 1.0

    def value(self, found: Mapping[str, Any]) -> float:
        figure = found[self.figure]
        if not isinstance(figure, dict):
            return float(figure) * self.scale
        return float(figure["engine_ms"]) + (float(figure["page_ms"]) if self.with_page else 0.0)

    def limit_for(self, engine: str) -> float | None:
        return self.limit_of[engine] if self.limit_of else self.limit


_LINES: Final = (
    _Line(text="take in a value, merges included", figure="value_us", limit=10.0, unit=" µs"),
    _Line(text="an insert of 50 records alone", figure="insert", limit=25.0),
    _Line(
        text="stored: lines and numbers of a record",
        figure="bytes",
        limit_of={"18.16": 180.0, "26.9": 150.0},
        unit=" B",
    ),
    _Line(text="shipper: a record, in bulk", figure="ship_us", limit=45.0, unit=" µs"),
    _Line(text="shipper at 100 records/s, of a core", figure="ship_share", limit=1.0, unit=" %", scale=100.0),
    _Line(text="list of {runs:,} runs", figure="list", limit=100.0),
    _Line(text="what changed in it", figure="changed", limit=10.0),
    _Line(text="one metric of {records:,} records: column", figure="curve", limit=500.0),
    _Line(text="its rows, once a run", figure="rows", limit=1000.0),
    _Line(
        text="thinned exactly, page included",
        figure="curve",
        limit=500.0,
        with_page=True,
    ),
    _Line(text="compare 8 runs, rows included", figure="compare", limit=150.0),
    _Line(text="group of 50 runs, rows included", figure="group", limit=600.0),
    _Line(text="1,024 ranks in 128 cells", figure="ranks_128", limit=400.0),
    _Line(text="1,024 ranks in 50 cells, the slowest named", figure="ranks_50", limit=120.0),
    _Line(text="newest 200 events", figure="events", limit=100.0),
    _Line(text="newest 200 events of {records:,} records", figure="events_large", limit=200.0),
    _Line(text="trends of 100 runs for the list", figure="trends"),
    _Line(text="record until a page can show it, p50, by the clock", figure="to_page_p50_s", unit=" s"),
    _Line(
        text="record until a page can show it, p99, by the clock",
        figure="to_page_p99_s",
        limit=5.0,
        unit=" s",
    ),
    _Line(
        text="request to answer on a page, p99, by the clock", figure="request_p99_s", limit=10.0, unit=" s"
    ),
)


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
        }
        if options.quick
        else {
            "repeats": 20,
            "runs": 12_000,
            "live_s": 60,
            "requests": 20,
            "records": 1_000_000,
            "ranks": 1024,
            "small": 64,
        }
    )
    engines: dict[str, dict[str, Any]] = {}
    notes = []
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        say("writing the runs")
        logs = {kind: folder / kind for kind in ("small", "large", "ranks")}
        write_many_runs(logs["small"], plan["small"], records=1_100)
        write_finished_run(logs["large"], "run-large", plan["records"])
        write_ranked_run(logs["ranks"], plan["ranks"], 200)
        for engine in ENGINES:
            try:
                engines[engine] = fleet_engine.measure(engine, logs, plan)
            except NoEngine as error:
                notes.append(f"ClickHouse {engine}: not measured, {error}")
    return _report(plan, engines, notes)


def _report(
    plan: Mapping[str, int],
    engines: Mapping[str, Mapping[str, Any]],
    notes: list[str],
) -> Report:
    rows, claims = [], []
    for line in _LINES:
        text = line.text.format(**plan)
        row = [text]
        for name in ENGINES:
            if name not in engines:
                row.append("-")
                continue
            value, limit = line.value(engines[name]), line.limit_for(name)
            row.append(f"{_rounded(value)}{line.unit}")
            if limit is not None:
                claims.append(
                    Claim(text=f"ClickHouse {name}: {text}", measured=value, limit=limit, unit=line.unit)
                )
        limits = sorted({line.limit_for(name) for name in ENGINES} - {None}, reverse=True)  # type: ignore[type-var]
        row.append(" / ".join(f"{limit:g}" for limit in limits) + line.unit if limits else "-")
        rows.append(row)
    notes += [
        "times are processor time of the engine, unless they say otherwise",
        (
            f"records of 8 numbers; {plan['small']} runs of 1,100 records, one of {plan['records']:,}, and one of "
            "1,024 ranks with 200 records each, of which rank 617 is a third slower; the other listed runs are "
            "copied manifests, received an hour before"
        ),
        "a page is tried every 0.5 s for a record; by default it refreshes itself every 5 s, which comes on top",
        "taking in a value: the engine alone, the shipper has its own line",
        *(
            f"ClickHouse {name}: {found['memory_mb']:,.0f} MB of memory afterwards"
            for name, found in engines.items()
        ),
    ]
    return Report(
        name="fleet",
        title="A fleet: shipping, and answers of the engines",
        columns=["what", *(f"ClickHouse {name}" for name in ENGINES), "limit"],
        rows=rows if engines else [],
        figures={"plan": dict(plan), "engines": dict(engines)},
        claims=claims,
        notes=notes,
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


if __name__ == "__main__":
    run_alone(build)
