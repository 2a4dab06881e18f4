"""`telemetry doctor`: what is wrong with a run, what usually causes it, and what to try."""

from __future__ import annotations

import argparse
import difflib
import io
import json
import math
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.cli.chosen_run import printable
from toolkit.diagnostics.bare_file import NoRecordsError
from toolkit.diagnostics.catalogue import CATALOGUE
from toolkit.diagnostics.finding import CRITICAL, INFO, SEVERITIES, WARNING, Finding
from toolkit.diagnostics.history import Diagnosis, diagnose, find_runs
from toolkit.diagnostics.remedy import Remedy, find_remedy
from toolkit.runfolder.status import work_out_status

_WIDTH: Final = 110
_MOST_LINES: Final = 2
"""Causes, and things to try, that people are shown of each finding; the JSON has all of them."""
_TELL_EVERY: Final = 200_000
_COLOURS: Final = {CRITICAL: "1;31", WARNING: "1;33", INFO: "36"}
_PLURALS: Final = {CRITICAL: "critical", WARNING: "warnings", INFO: "infos"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to look at, and which findings to tell."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_FOLDER",
        type=Path,
        help="a run folder, a folder of runs, or a bare JSONL or CSV file with a row for each logged step",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--kinds",
        type=_kinds,
        metavar="KIND,…",
        help=f"tell and count these only, of: {', '.join(CATALOGUE)}",
    )
    parser.add_argument(
        "--min-severity", choices=SEVERITIES, default=INFO, help="leave out what is milder (default: info)"
    )
    parser.epilog = (
        "Exit code: 1 if a finding is critical, open or resolved; 2 if nothing could be read; else 0."
    )


def run(args: argparse.Namespace) -> int:
    """Print what is wrong with each run; 1 where something critical is, 2 where there is nothing to read."""
    try:
        paths = find_runs(args.path)
    except (OSError, NoRecordsError) as error:
        return _refuse(args.path, error)

    told: list[tuple[Diagnosis, list[Finding]]] = []
    unreadable = []
    for path in paths:
        progress = _Progress(path)
        try:
            found = diagnose(path, on_records=progress.show)
        except (OSError, NoRecordsError) as error:
            _refuse(path, error)
            unreadable.append({"path": str(path), "reason": str(error)})
            continue
        finally:
            progress.clear()
        findings = [finding for finding in found.findings if _is_asked_for(finding, args)]
        told.append((found, findings))
        if not args.json:
            _print_run(found, findings, is_first=len(told) == 1)

    if not told:
        return 2
    if args.json:
        runs = [_as_json(found, findings) for found, findings in told]
        answer = runs[0] if paths == [args.path] else {"runs": runs, "unreadable": unreadable}
        print(json.dumps(answer, indent=2, allow_nan=False))
    return 1 if any(finding.severity == CRITICAL for _, findings in told for finding in findings) else 0


def _is_asked_for(finding: Finding, args: argparse.Namespace) -> bool:
    if args.kinds is not None and finding.kind not in args.kinds:
        return False
    return SEVERITIES.index(finding.severity) >= SEVERITIES.index(args.min_severity)


def _kinds(text: str) -> frozenset[str]:
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in CATALOGUE:
            close = difflib.get_close_matches(kind, CATALOGUE, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise argparse.ArgumentTypeError(
                f"{ascii(kind)[:60]} is no kind of finding{hint} Known: {', '.join(CATALOGUE)}"
            )
    if not kinds:
        raise argparse.ArgumentTypeError(f"names no kind of finding. Known: {', '.join(CATALOGUE)}")
    return frozenset(kinds)


def _refuse(path: Path, error: Exception) -> int:
    if isinstance(error, FileNotFoundError):
        reason = f"{error.filename or path} is not there"
    elif isinstance(error, OSError) and error.strerror:
        reason = f"{path}: {error.strerror}"
    else:
        reason = str(error) if str(path) in str(error) else f"{path}: {error}"
    print(printable(reason), file=sys.stderr)
    return 2


# ------------------------------------------------------------ for scripts


def _as_json(found: Diagnosis, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "run": found.name,
        "path": str(found.path),
        "status": _status_of(found),
        "records": found.records,
        "bad_lines": found.bad_lines,
        "notes": list(found.notes),
        "findings": [_finding_as_json(found, finding) for finding in findings],
    }


def _finding_as_json(found: Diagnosis, finding: Finding) -> dict[str, Any]:
    remedy = _remedy_of(found, finding)
    return {
        **finding.to_fields(),
        # JSON has no NaN.
        "evidence": {
            name: value if math.isfinite(value) else None for name, value in finding.evidence.items()
        },
        "remedy": None if remedy is None else remedy.name,
    }


# ------------------------------------------------------------ for people


def _print_run(found: Diagnosis, findings: Sequence[Finding], *, is_first: bool) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a letter shows another one instead.
        sys.stdout.reconfigure(errors="replace")
    status = _status_of(found)
    told = _counts(findings) if findings else "nothing wrong"
    if left_out := len(found.findings) - len(findings):
        told = f"{_counts(findings) or 'nothing that was asked for'}, {left_out:,} left out,"
    about = f"{told} in {found.records:,} records" if found.records else "no records yet"
    print("" if is_first else "\n", end="")
    print(f"{_bold(printable(found.name))}: {f'{status}, ' if status else ''}{about}")
    if found.bad_lines:
        lines = "1 line is" if found.bad_lines == 1 else f"{found.bad_lines:,} lines are"
        print(f"  ({lines} no record)")
    for note in found.notes:
        print(f"  ({printable(note)})")
    for finding in findings:
        print()
        _print_finding(finding, _remedy_of(found, finding))


def _print_finding(finding: Finding, remedy: Remedy | None) -> None:
    severity = _coloured(finding.severity.upper(), _COLOURS[finding.severity])
    print(f"  {severity}  {_bold(CATALOGUE[finding.kind].title)} ({finding.kind}), {_when(finding)}")
    _print_lines("", [finding.message])
    _print_lines("Causes: ", finding.causes[:_MOST_LINES])
    _print_lines("Try:    ", finding.advice[:_MOST_LINES])
    if remedy is not None:
        _print_lines("Ask:    ", [_offer(remedy)])


def _print_lines(label: str, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        indent = "    " + (label if number == 0 else " " * len(label))
        print(
            textwrap.fill(
                printable(line), _WIDTH, initial_indent=indent, subsequent_indent="    " + " " * len(label)
            )
        )


def _when(finding: Finding) -> str:
    if finding.is_open:
        when = f"from step {finding.start_step:,} on"
    elif finding.end_step is None or finding.end_step == finding.start_step:
        when = f"step {finding.start_step:,}"
    else:
        when = f"steps {finding.start_step:,} to {finding.end_step:,}"
    if finding.noticed_step != finding.start_step:
        when += f", noticed at {finding.noticed_step:,}"
    if finding.resolved_step is not None:
        when += f", over at {finding.resolved_step:,}"
    if finding.repeats:
        when += f", came back {finding.repeats:,} times" if finding.repeats > 1 else ", came back once"
    return when


def _offer(remedy: Remedy) -> str:
    if not remedy.is_knob:
        return f"the run takes the action {remedy.name!r}"
    low, high, value = (remedy.about.get(name) for name in ("low", "high", "value"))
    about = f", {low} to {high}" if low is not None and high is not None else ""
    now = f", {value} now" if value is not None else ""
    return f"the run has the knob {remedy.name!r}{about}{now}"


def _counts(findings: Sequence[Finding]) -> str:
    counts = []
    for severity in reversed(SEVERITIES):
        count = sum(finding.severity == severity for finding in findings)
        if count:
            counts.append(f"{count:,} {severity if count == 1 else _PLURALS[severity]}")
    return ", ".join(counts)


def _status_of(found: Diagnosis) -> str | None:
    return None if found.manifest is None else work_out_status(found.manifest, time.time()).name


def _remedy_of(found: Diagnosis, finding: Finding) -> Remedy | None:
    return None if found.manifest is None else find_remedy(finding.remedies, found.manifest.control)


def _bold(text: str) -> str:
    return _coloured(text, "1")


def _coloured(text: str, code: str) -> str:
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if is_plain else f"\x1b[{code}m{text}\x1b[0m"


class _Progress:
    """Tells whoever waits at a terminal how far a long run has been read."""

    def __init__(self, path: Path) -> None:
        self._name = printable(path.name)
        self._is_shown = False
        self._told = 0

    def show(self, records: int) -> None:
        """Say how many records were read, now and then."""
        if records - self._told >= _TELL_EVERY and sys.stderr.isatty():
            self._told = records
            self._is_shown = True
            print(f"\r{self._name}: {records:,} records …", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the line empty, where something stands on it."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
