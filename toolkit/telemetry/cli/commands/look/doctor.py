"""`telemetry doctor`: show what is wrong with a run, the likely causes and what to try."""

from __future__ import annotations

import argparse
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, no_run_in, printable, refuse
from toolkit.telemetry.cli.report_content import UnreadableRunError, diagnosis_of
from toolkit.telemetry.cli.run_list import ListedRun, as_given, list_runs, run_at
from toolkit.telemetry.cli.terminal import Progress, add_json_argument, painted, print_json
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, title_of
from toolkit.telemetry.diagnostics.diagnosis import Diagnosis
from toolkit.telemetry.diagnostics.ending import RunError
from toolkit.telemetry.diagnostics.finding import (
    CRITICAL,
    INFO,
    SEVERITIES,
    WARNING,
    Finding,
    Remedy,
    find_remedy,
)
from toolkit.telemetry.diagnostics.policy import PolicyError, require_kind
from toolkit.telemetry.reports.finding_text import (
    about_error,
    counts_text,
    ending_details,
    ending_text,
    message_of,
    place_of,
    sure_text,
    when_text,
)
from toolkit.telemetry.runfolder.node_folders import part_in
from toolkit.telemetry.runfolder.untrusted import is_number

_WIDTH: Final = 110
_MOST_LINES: Final = 2
"""Causes, and things to try, printed for each finding; the JSON has all of them."""
_STYLES: Final = {CRITICAL: "bold red", WARNING: "bold yellow", INFO: "cyan"}

JSON_FORM: Final = """\
an object for a run, and `{"runs": […], "unreadable": […]}` for a folder of runs; \
docs/detectors.md describes both."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and which findings to print."""
    parser.add_argument(
        "path",
        metavar="RUN_OR_FOLDER",
        nargs="?",
        type=Path,
        help="a run, a folder of runs, a JSONL or CSV file with one row per logged step, or logs of another tool "
        f"(default: the newest run in {LOGS})",
    )
    add_json_argument(parser)
    parser.add_argument(
        "--kinds",
        type=_kinds,
        metavar="KIND,…",
        help=f"print and count only these kinds of findings: {', '.join(CATALOGUE)}",
    )
    parser.add_argument(
        "--min-severity",
        choices=SEVERITIES,
        default=INFO,
        help="leave out findings and errors below this severity (default: info)",
    )
    parser.epilog = (
        "Exit code: 0 if the run is healthy; 1 if it failed, was lost or stalled, if records are missing, or if a "
        "finding or error is critical, open or resolved; 2 if nothing could be read. With --kinds only these findings "
        "count."
    )


def run(args: argparse.Namespace) -> int:
    """Print how each run ended and what is wrong with it; return 1 if it is unhealthy, 2 if nothing can be read."""
    given = args.path
    runs, problems = _runs_at(given or LOGS, is_named=given is not None)
    for reason in problems:
        refuse(reason)
    answers: list[Diagnosis] = []
    unreadable = []
    for run in runs:
        try:
            if part_in(run.path) is not None:
                raise UnreadableRunError(no_run_in(run.path))
            with Progress() as progress:
                found = diagnosis_of(run, progress.show)
        except UnreadableRunError as error:
            refuse(str(error))
            unreadable.append({"path": str(run.path), "reason": str(error)})
            continue
        found = replace(found, path=as_given(run.path, given or LOGS))
        answer = found.only(args.min_severity, args.kinds)
        answers.append(answer)
        if not args.json:
            _print_run(answer, is_first=len(answers) == 1)

    if not answers:
        return 2
    if args.json:
        said = [_as_json(answer) for answer in answers]
        is_folder = given is not None and given.is_dir() and runs[0].path != Path(os.path.abspath(given))
        is_one = len(runs) == 1 and not is_folder
        print_json(said[0] if is_one else {"runs": said, "unreadable": unreadable})
    return 1 if any(answer.is_bad for answer in answers) else 0


def _runs_at(path: Path, *, is_named: bool) -> tuple[Sequence[ListedRun], Sequence[str]]:
    """Return the runs that `telemetry ls` lists at `path`, by name, or the newest where none `is_named`."""
    if not is_named or not os.path.lexists(path):
        return [run_at(path)], []
    found = list_runs([path])
    runs = sorted(found.runs, key=lambda run: (run.called, str(run.path)))
    return runs, [*found.missing, *found.notes]


def _kinds(text: str) -> frozenset[str]:
    kinds = [kind.strip() for kind in text.split(",") if kind.strip()]
    try:
        for kind in kinds or [""]:
            require_kind("--kinds", kind)
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--kinds: ")) from error
    return frozenset(kinds)


# ------------------------------------------------------------ JSON


def _as_json(found: Diagnosis) -> dict[str, Any]:
    ending = found.ending
    return {
        "run": found.name,
        "path": str(found.path),
        "status": None if ending is None else ending.status,
        "ending": None if ending is None else asdict(ending),
        "records": found.records,
        "bad_lines": found.bad_lines,
        "notes": list(found.notes),
        "errors": [asdict(error) for error in found.errors],
        "findings": [_finding_as_json(found, finding) for finding in found.findings],
    }


def _finding_as_json(found: Diagnosis, finding: Finding) -> dict[str, Any]:
    remedy = _remedy_of(found, finding)
    return {
        **finding.to_fields(),
        # JSON has no NaN.
        "evidence": {
            name: None if is_number(value) and not math.isfinite(value) else value
            for name, value in finding.evidence.items()
        },
        "remedy": None if remedy is None else remedy.name,
    }


# ------------------------------------------------------------ text


def _print_run(found: Diagnosis, *, is_first: bool) -> None:
    ending = found.ending
    print("" if is_first else "\n", end="")
    name = _bold(printable(found.name))
    if ending is None:
        print(f"{name}: {_summary(found)}")
    elif not ending.is_bad:
        print(f"{name}: {printable(''.join(ending_text(ending)))}, {_summary(found)}")
    else:
        status, rest = map(printable, ending_text(ending))
        print(f"{name}: {painted(status, _STYLES[CRITICAL])}{rest}")
        for line in ending_details(ending, str(found.path)):
            # Not wrapped: it contains paths, and a command to copy.
            print(f"    {printable(line)}")
        print(f"  {_summary(found)}")
    if found.bad_lines:
        print(
            "  (1 unreadable line)" if found.bad_lines == 1 else f"  ({found.bad_lines:,} unreadable lines)"
        )
    for note in found.notes:
        print(f"  ({printable(note)})")
    for finding in found.findings:
        print()
        _print_finding(finding, _remedy_of(found, finding))
    for error in found.errors:
        print()
        _print_error(error)


def _summary(found: Diagnosis) -> str:
    ending = found.ending
    if not found.records:
        return "no records yet"
    nothing = "nothing else wrong" if found.is_cut or (ending and ending.is_bad) else "nothing wrong"
    counts = counts_text(found.findings, found.errors)
    summary = counts or nothing
    if found.left_out:
        summary = f"{counts or 'nothing that was asked for'}, {found.left_out:,} left out,"
    return f"{summary} in {found.records:,} records"


def _print_error(error: RunError) -> None:
    severity = painted(error.severity.upper(), _STYLES[error.severity])
    about = "".join(f", {each}" for each in about_error(error))
    print(f"  {severity}  {_bold('Error')} ({printable(error.type)}){about}")
    _print_lines("", [message_of(error), *place_of(error)])


def _print_finding(finding: Finding, remedy: Remedy | None) -> None:
    severity = painted(finding.severity.upper(), _STYLES[finding.severity])
    title = title_of(finding)
    sure = sure_text(finding.kind, finding.confidence)
    print(f"  {severity}  {_bold(title)} ({finding.kind}), {when_text(finding)}{f', {sure}' if sure else ''}")
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


def _offer(remedy: Remedy) -> str:
    if not remedy.is_knob:
        return f"the run accepts the action {remedy.name!r}"
    low, high, value = (remedy.about.get(name) for name in ("low", "high", "value"))
    about = f", {low} to {high}" if low is not None and high is not None else ""
    now = f", {value} now" if value is not None else ""
    return f"the run has the knob {remedy.name!r}{about}{now}"


def _remedy_of(found: Diagnosis, finding: Finding) -> Remedy | None:
    return None if found.manifest is None else find_remedy(finding.remedies, found.manifest.control)


def _bold(text: str) -> str:
    return painted(text, "bold")
