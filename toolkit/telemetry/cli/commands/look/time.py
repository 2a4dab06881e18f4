"""`telemetry time`: show where the time of a run went and how much of it was training."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, printable
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import Column, Progress, add_json_argument, print_json, print_table
from toolkit.telemetry.runs.formatting import duration
from toolkit.telemetry.timing.history import RunTime, read_run_time
from toolkit.telemetry.timing.ledger import Ledger, Line
from toolkit.telemetry.timing.span_summary import SpanSummary

_MARK: Final = " *"

JSON_FORM: Final = """\
an object with `run`, `path`, `status`, `records`, `bad_lines`, and the ledger: `wall_s`, `goodput`, `kwh`, \
`between_sessions_s`, `notes`, `lines` (`entry`, `seconds`, `share`, `kwh`, `inferred`), and `sessions`, each with \
`session`, `wall_s`, `lines`, `goodput`, `kwh` and `perf_tag`. `spans` has an object for each name: `count`, `total`, \
`p50`, `p95` and `longest`, in seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the output format."""
    add_run_argument(parser)
    parser.add_argument(
        "--spans",
        action="store_true",
        help="also show count, total, p50, p95 and max of the spans of each name",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the run's time ledger; return 2 if there is nothing to read."""
    folder = chosen_run(args.run)
    with Progress() as progress:
        found = read_run_time(folder, on_records=lambda records: progress.show(f"{records:,} records …"))
    if args.json:
        print_json(_as_json(folder, found))
    else:
        _print(folder, found)
        if args.spans:
            _print_spans(found.spans)
    return 0


def _as_json(folder: Path, found: RunTime) -> dict[str, Any]:
    ledger = asdict(found.ledger)
    return {
        "run": _name_of(folder),
        "path": str(folder),
        "status": found.status,
        "records": found.records,
        "bad_lines": found.bad_lines,
        **ledger,
        "spans": {name: asdict(summary) for name, summary in found.spans.items()},
    }


# ------------------------------------------------------------ text


def _print(folder: Path, found: RunTime) -> None:
    ledger = found.ledger
    status = f"{found.status}, " if found.status else ""
    print(f"{printable(_name_of(folder))}: {status}{duration(ledger.wall_s)} of wall time\n")
    if not ledger.sessions:
        print("No records yet.")
        return
    _print_table(ledger)
    print(
        f"\nGoodput {_percent(ledger.goodput or 0.0)}: the share of wall time spent on training that was kept."
    )
    if len(ledger.sessions) > 1:
        _print_sessions(ledger)
    if any(line.inferred for line in ledger.lines):
        print(f"{_MARK.strip()} inferred: not covered by a span, counted where such time usually belongs.")
    for note in ledger.notes:
        print(f"({note})")
    if found.bad_lines:
        print("(1 unreadable line)" if found.bad_lines == 1 else f"({found.bad_lines:,} unreadable lines)")


def _print_table(ledger: Ledger) -> None:
    columns = [Column("entry"), *(Column(title, right=True) for title in ("time", "share", "kWh"))]
    rows = [*map(_row, ledger.lines), ("total", duration(ledger.wall_s), _percent(1.0), _kwh(ledger.kwh))]
    shown = len(columns) - (ledger.kwh is None)
    print_table(columns[:shown], [row[:shown] for row in rows])


def _print_spans(spans: Mapping[str, SpanSummary]) -> None:
    if not spans:
        print("\nNo spans.")
        return
    titles = ("count", "total", "p50", "p95", "max")
    rows = [
        (name, f"{one.count:,}", *map(_length, (one.total, one.p50, one.p95, one.longest)))
        for name, one in spans.items()
    ]
    print()
    print_table([Column("span"), *(Column(title, right=True) for title in titles)], rows)


def _length(seconds: float) -> str:
    """Return a duration with a unit that suits it, down to microseconds."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else duration(seconds)


def _row(line: Line) -> tuple[str, ...]:
    name = line.entry.replace("_", " ") + (_MARK if line.inferred else "")
    return name, duration(line.seconds), _percent(line.share), _kwh(line.kwh)


def _print_sessions(ledger: Ledger) -> None:
    for session in ledger.sessions:
        tag = f", {printable(session.perf_tag)}" if session.perf_tag else ""
        goodput = _percent(session.goodput or 0.0)
        print(f"  session {session.session}: {duration(session.wall_s)}, goodput {goodput}{tag}")
    if ledger.between_sessions_s >= 1.0:
        print(f"{duration(ledger.between_sessions_s)} between sessions are not counted.")


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def _kwh(kwh: float | None) -> str:
    if kwh is None:
        return ""
    # A short run uses a fraction of a watt-hour.
    return f"{kwh:.3f}" if 0.1 <= kwh < 10.0 else f"{kwh:,.1f}" if kwh >= 10.0 else f"{kwh:.3g}"


def _name_of(folder: Path) -> str:
    # "." has no name of its own, and a link's name says more than its target.
    return Path(os.path.abspath(folder)).name
