"""The tables of docs/figures/ranks.md."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import APPENDICES, put_between_marks
from benchmarks.rank_faults.cases import FAULTS, NO_FAULT, WORLDS
from benchmarks.rank_faults.launch import from_json
from benchmarks.rank_faults.score import Judgement, Result, judge

DOCUMENT: Final = APPENDICES / "ranks.md"
BEGIN: Final = "<!-- figures: written by python -m benchmarks.rank_faults tables -->"
_ALL: Final = "all"
_Judged = tuple[Result, Judgement]


def write_tables(results: Path, *, only_print: bool) -> int:
    """Print the tables, and write them."""
    lines = results.read_text(encoding="utf-8").splitlines()
    found = [from_json(line) for line in lines]
    text = tables_of([(each, judge(each)) for each in found], _machine(results))
    print(text)
    if not only_print:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(put_between_marks(document, text, BEGIN), encoding="utf-8")
        print(f"{DOCUMENT.name}: figures written", file=sys.stderr)
    return 0


def tables_of(judged: Sequence[_Judged], machine: str) -> str:
    """Return the tables as Markdown."""
    whole = [each for each in judged if not each[0].problem]
    left = len(judged) - len(whole)
    parts = [
        f"{len(whole)} runs{f' ({left} more failed to start and do not count)' if left else ''} {machine}.".replace(
            "  ", " "
        ),
        _table(
            (
                "fault",
                "runs",
                "detected",
                "right rank",
                "right part",
                "seconds: median",
                "p95",
                "runs with a wrong finding about ranks",
            ),
            [_row(fault, whole) for fault in (*FAULTS, _ALL)],
        ),
        _without(whole),
        "By number of ranks, detected and the right rank named:",
        _table(
            ("fault", *(f"{world} ranks" for world in WORLDS)),
            [(fault, *(_share(fault, whole, world) for world in WORLDS)) for fault in FAULTS],
        ),
    ]
    alarms = [(result, alarm) for result, judgement in whole for alarm in judgement.false_alarms]
    if alarms:
        parts.append("Every finding about ranks that was wrong:")
        parts.append(
            "\n".join(f"- {result.case.fault}, {result.case.style}: {alarm}" for result, alarm in alarms)
        )
    missed = [
        result.case
        for result, judgement in whole
        if result.case.fault != NO_FAULT and not judgement.is_right_rank
    ]
    if missed:
        parts.append("Not detected, or not with the right rank:")
        rows = [
            f"- {case.fault}{' (second form)' if case.variant else ''}, {case.world} ranks, on "
            f"{'rank' if len(case.ranks) == 1 else 'ranks'} {', '.join(map(str, case.ranks))}, {case.style}"
            for case in missed
        ]
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _row(fault: str, judged: Sequence[_Judged]) -> tuple[str, ...]:
    mine = [
        each
        for result, each in judged
        if (result.case.fault == fault if fault != _ALL else result.case.ranks)
    ]
    named = [each for each in mine if each.is_right_rank]
    parts = [each.is_right_part for each in named if each.is_right_part is not None]
    return (
        fault,
        str(len(mine)),
        _of(sum(each.is_detected for each in mine), len(mine)),
        _of(len(named), len(mine)),
        _of(sum(parts), len(parts)) if parts else "-",
        *_delays([each.seconds for each in named if each.seconds is not None]),
        str(sum(bool(each.false_alarms) for each in mine)),
    )


def _without(judged: Sequence[_Judged]) -> str:
    clean = [each for each in judged if each[0].case.fault == NO_FAULT]
    alarms = sum(len(judgement.false_alarms) for _, judgement in clean)
    hours = sum(result.seconds * result.case.world for result, _ in clean) / 3600.0
    named = sum(judgement.is_right_rank for _, judgement in judged)
    wrong = sum(len(judgement.false_alarms) for _, judgement in judged)
    return (
        f"Without a fault: {len(clean)} runs, {hours:.1f} rank-hours, {alarms} false alarms. "
        f"Of all runs, precision {named / max(1, named + wrong):.3f} ({named} right, {wrong} wrong findings)."
    )


def _share(fault: str, judged: Sequence[_Judged], world: int) -> str:
    mine = [each for result, each in judged if result.case.fault == fault and result.case.world == world]
    return _of(sum(each.is_right_rank for each in mine), len(mine))


def _of(count: int, total: int) -> str:
    return f"{count}/{total}"


def _delays(seconds: Sequence[float]) -> tuple[str, str]:
    if not seconds:
        return "-", "-"
    ordered = sorted(seconds)
    return (
        f"{statistics.median(ordered):.1f}",
        f"{ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]:.1f}",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(results: Path) -> str:
    about = results.with_name("machine.json")
    if not about.exists():
        return ""
    known = json.loads(about.read_text(encoding="utf-8"))
    return (
        f"on {known['cores']} cores ({known['machine']}), {known['jobs']} at a time, torch {known['torch']}"
    )
