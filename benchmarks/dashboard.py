"""The dashboard in a browser: opening runs, comparing, zooming, refreshing, listing many.

`python -m benchmarks.dashboard --only open` measures one part; `--quick` takes a tenth of the records.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import browser, dashboard_open, dashboard_refresh, dashboard_zoom
from benchmarks.command import Options, run_alone
from benchmarks.dashboard_parts import COLUMNS, QUICK, Part, Plan
from benchmarks.report import Report

_PARTS = {
    "open": dashboard_open.measure,
    "zoom": dashboard_zoom.measure,
    "refresh": dashboard_refresh.measure,
    "runs": dashboard_open.measure_lists,
}


def build(options: Options) -> Report:
    """Measure every part, unless `options` names some."""
    plan = QUICK if options.quick else Plan()
    parts = [measure for name, measure in _PARTS.items() if not options.only or name in options.only]
    missing = browser.missing()
    part = Part()
    if missing:
        part.notes.append(f"the dashboard: not measured, {' and '.join(missing)} not installed")
    elif parts:
        with browser.open_browser() as chromium:
            for measure in parts:
                with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
                    measure(chromium, plan, Path(name), part)
            part.notes.append(f"Chromium {chromium.version}")
    return Report(
        name="dashboard",
        title=f"The dashboard in a headless Chromium, a run of {plan.records:,} records with ten scalars each",
        columns=COLUMNS,
        rows=part.rows,
        figures={"records": plan.records},
        claims=part.claims,
        notes=part.notes,
    )


if __name__ == "__main__":
    run_alone(build, _PARTS)
