"""The dashboard in a browser: opening runs, comparing, zooming, refreshing, listing many.

`python -m benchmarks.dashboard --only open` measures one part; `--quick` takes a tenth of the records.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks import (
    browser,
    dashboard_open,
    dashboard_refresh,
    dashboard_runs,
    dashboard_zoom,
)
from benchmarks.command import Options
from benchmarks.contenders import OURS
from benchmarks.dashboard_part import COLUMNS, QUICK, Part, Plan
from benchmarks.report import Report

_PARTS = ("open", "zoom", "refresh", "runs")


def build(options: Options) -> Report:
    """Measure every part, unless `options` names only others."""
    parts = () if options.only and OURS.name not in options.only else _PARTS
    return measure(QUICK if options.quick else Plan(), parts)


def measure(plan: Plan, parts: Collection[str]) -> Report:
    """Measure `parts` in one session."""
    missing = browser.missing()
    found: dict[str, Part] = {}
    notes: list[str] = []
    if missing or not parts:
        notes += [f"the dashboard: not measured, {' and '.join(missing)} not installed"] if missing else []
        return _report(plan, found, notes)
    with browser.open_browser() as chromium:
        notes.append(f"Chromium {chromium.version}")
        if "open" in parts:
            found["open"] = dashboard_open.measure(chromium, plan)
        if "zoom" in parts:
            found["zoom"] = dashboard_zoom.measure(chromium, plan)
        if "refresh" in parts:
            found["refresh"] = dashboard_refresh.measure(chromium, plan)
        if "runs" in parts:
            found["runs"] = dashboard_runs.measure(chromium, plan)
    return _report(plan, found, notes)


def _report(plan: Plan, found: dict[str, Part], notes: Sequence[str]) -> Report:
    figures: dict[str, Any] = {name: part.figures for name, part in found.items()}
    return Report(
        name="dashboard",
        title=f"The dashboard in a headless Chromium, a run of {plan.records:,} records with ten scalars each",
        columns=COLUMNS,
        rows=[row for part in found.values() for row in part.rows],
        figures={"records": plan.records, **figures},
        claims=[claim for part in found.values() for claim in part.claims],
        notes=[*(note for part in found.values() for note in part.notes), *notes],
    )


def main() -> None:
    """Run the selected parts, print the results and write the JSON."""
    parser = argparse.ArgumentParser(description="Measure the dashboard in one session.")
    parser.add_argument("--quick", action="store_true", help="a short run with a tenth of the records")
    parser.add_argument("--only", nargs="+", default=(), choices=_PARTS, help="measure only these parts")
    args = parser.parse_args()
    # If terminated, still stop the servers and the browser and remove the folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = measure(QUICK if args.quick else Plan(), args.only or _PARTS)
    report.show()
    report.save(quotable=not args.quick and not args.only)


if __name__ == "__main__":
    main()
