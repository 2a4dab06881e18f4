"""How often a rank that fails, is slow or hangs is named, and nothing is said of ranks that only take long."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluations.figures import Options, say, share, table
from evaluations.rank_cases import FAULTS, HANG_AFTER_S, HANGS, HELD_OUT, LONG, NO_FAULT, cases
from evaluations.rank_runs import Result, make_runs

PAGE: Final = "ranks.md"
_FAULTS_EACH: Final = 12
_WITHOUT: Final = 40
_LONG_EACH: Final = 5
_HELD_OUT_EACH: Final = 5


def run(options: Options) -> str:
    """Make the runs and return the figures."""
    each = 1 if options.quick else _FAULTS_EACH
    wanted = [
        *cases((*FAULTS, *HANGS), each),
        *cases((NO_FAULT,), 2 if options.quick else _WITHOUT),
        *cases(LONG, 1 if options.quick else _LONG_EACH),
        *([] if options.quick else cases(HELD_OUT, _HELD_OUT_EACH)),
    ]
    jobs = max(3, (os.cpu_count() or 2) - 2)
    results = []
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        for result in make_runs(wanted, Path(folder), jobs=jobs):
            results.append(result)
            if len(results) % 20 == 0:
                say(f"{len(results)} of {len(wanted)} runs")
            if options.list_errors and (result.wrong or not result.is_right_rank or result.problem):
                print(result, file=sys.stderr)
    return tables_of(
        results, f"{len(results)} runs of 4 and 8 real gloo ranks on {os.cpu_count()} cores, {jobs} at a time"
    )


def tables_of(results: Sequence[Result], about: str) -> str:
    """Return the tables."""
    whole = [each for each in results if not each.problem]
    rows = [
        *(_row(kind, [each for each in whole if each.case.fault == kind]) for kind in (*FAULTS, *HANGS)),
        _row("**these together**", [each for each in whole if each.case.fault in (*FAULTS, *HANGS)]),
        *(
            _row(f"{kind}, held out", [each for each in whole if each.case.fault == kind])
            for kind in HELD_OUT
        ),
    ]
    header = ("fault", "right rank", "right part or line", "critical", "seconds: median, worst")
    clean = [each for each in whole if each.case.fault == NO_FAULT]
    long = [each for each in whole if each.case.fault in LONG]
    head = (
        f"{about}; {len(results) - len(whole)} more did not start or did not reach their fault. What counts is "
        "the live run's own finding that names the rank and no other; where rank 0 is gone, that of "
        f"`telemetry doctor`. Hangs: seconds after the limit, which is {HANG_AFTER_S:g} s."
    )
    alarms = [share(sum(bool(each.wrong) for each in those), len(those)) for those in (clean, long)]
    too = sum(bool(each.wrong) for each in whole if each not in (*clean, *long))
    healthy = (
        f"Without a fault: false alarms in {alarms[0]} of {len(clean)} runs; in {alarms[1]} of {len(long)} that "
        f"take longer than a hang's limit. Runs with a fault and a wrong finding, too: {too}."
    )
    wrong = [f"- {each.case.name}: {each.wrong[0]}" for each in (*clean, *long) if each.wrong]
    return "\n\n".join([head, table(header, [row for row in rows if row[1] != "-"]), healthy, *wrong])


def _row(title: str, results: Sequence[Result]) -> tuple[str, ...]:
    if not results:
        return (title, "-")
    right = [each for each in results if each.is_right_rank]
    parts = [each.is_right_part for each in right if each.is_right_part is not None]
    seconds = sorted(each.seconds for each in right if each.seconds is not None)
    count = share if title.startswith("**") else _of
    return (
        title,
        count(len(right), len(results)),
        count(sum(parts), len(parts)) if parts else "-",
        count(sum(each.is_critical for each in right), len(right)),
        f"{statistics.median(seconds):.1f}, {seconds[-1]:.1f}" if seconds else "-",
    )


def _of(right: int, of: int) -> str:
    return f"{right}/{of}"
