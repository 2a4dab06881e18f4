"""`telemetry repair`: recover what a killed run left."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import LOGS, no_run_in, printable, refuse
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import Progress, add_json_argument, print_json
from toolkit.telemetry.runfolder.folder_list import run_folders
from toolkit.telemetry.runfolder.journal.end_record import settle_manifest
from toolkit.telemetry.runfolder.journal.repair import Repair, journals_of, rank_files, repair_run
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.node_folders import parts_of
from toolkit.telemetry.runfolder.status import LOST

JSON_FORM: Final = """\
`{"runs": […]}`; each has `path`, `repaired`, `reason` (why not, or `null`), `recovered`, `rows`, `bad_lines`, \
`undeclared` (records missing and not declared lost), `foreign`, `ended` (the status that run.json was given, or \
`null`), `kept_table` and `of_others` (`path`, `user`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run folders."""
    parser.add_argument(
        "run", metavar="RUN", nargs="*", type=Path, help=f"run folders (default: the newest run in {LOGS})"
    )
    add_json_argument(parser)
    parser.epilog = (
        "Exit code: 0; 1 if another user has records of a run, which only that user can recover; "
        "2 if a run could not be repaired."
    )


def run(args: argparse.Namespace) -> int:
    """Repair each run folder; return 1 if another user has records of one, 2 if one could not be repaired."""
    folders = [*map(_folder_of, args.run)] or [chosen_run(LOGS)]
    whole_and_parts = [part for folder in folders for part in (folder, *parts_of(folder))]
    worst = 0
    done = []
    progress = Progress()
    for at, folder in enumerate(whole_and_parts := [*dict.fromkeys(whole_and_parts)]):
        progress.show(folder.name, at, len(whole_and_parts))
        found = _repair(folder)
        progress.clear()
        done.append(_as_json(folder, found))
        if isinstance(found, str):
            worst = refuse(found)
            continue
        repair, ended = found
        if not args.json:
            _print(folder, repair, ended)
        worst = max(worst, 1 if repair.of_others else 0)
    if args.json:
        print_json({"runs": done})
    return worst


def _folder_of(path: Path) -> Path:
    with suppress(FileNotFoundError):
        return path if os.path.lexists(path) else chosen_run(path)
    return path


def _repair(folder: Path) -> tuple[Repair, str | None] | str:
    """Repair a run and return what was done and the status that its manifest was given, or why not."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    has_files = any(os.path.lexists(folder / name) for name in (METRICS_JSONL, MANIFEST)) or rank_files(
        folder
    )
    try:
        if not has_files and not journals_of(folder):
            below = run_folders([folder])
            return (
                f"{folder} is a folder of runs; name one, such as {below[0]}" if below else no_run_in(folder)
            )
        repair = repair_run(folder)
        if repair.in_use:
            return f"{folder}: a running process is writing this run; nothing was changed"
        return repair, settle_manifest(folder)
    except OSError as error:
        return f"{folder}: {error}"


def _as_json(folder: Path, found: tuple[Repair, str | None] | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"path": str(folder), "repaired": False, "reason": found}
    repair, ended = found
    return {
        "path": str(folder),
        "repaired": True,
        "reason": None,
        "recovered": repair.recovered,
        "rows": repair.rows,
        "bad_lines": repair.bad_lines,
        "undeclared": repair.undeclared,
        "foreign": repair.foreign,
        "ended": ended,
        "kept_table": None if repair.kept_table is None else str(repair.kept_table),
        "of_others": [{"path": str(path), "user": user} for path, user in repair.of_others],
    }


def _print(folder: Path, repair: Repair, ended: str | None) -> None:
    if ended is not None:
        why = ": it ended without an end record" if ended == LOST else ", as the end record does"
        _say(f"{folder}: run.json now says {ended}{why}")
    _say(f"{folder}: {_outcome(repair)}")
    if repair.kept_table is not None:
        _say(
            f"{folder}: the old metrics.csv had data that the records lack; it was kept as {repair.kept_table.name}"
        )
    for path, user in repair.of_others:
        refuse(
            f"{folder}: {path} may hold more records of this run and belongs to user {user}: "
            "only that user can recover them, with `telemetry repair`"
        )


def _say(line: str) -> None:
    print(printable(line))


def _outcome(repair: Repair) -> str:
    if repair.foreign:
        outcome = f"now has {repair.rows} rows" if repair.rows else "was not changed"
        bad = f", {repair.bad_lines} unreadable lines" if repair.bad_lines else ""
        return (
            f"{repair.foreign} records of another program, which need no repair; metrics.csv {outcome}{bad}"
        )
    undeclared = f", {repair.undeclared} records missing and not declared lost" if repair.undeclared else ""
    return (
        f"{repair.recovered} records recovered, {repair.rows} rows in metrics.csv, "
        f"{repair.bad_lines} unreadable lines{undeclared}"
    )
