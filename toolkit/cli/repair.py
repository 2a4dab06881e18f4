"""`telemetry repair`: make a run folder whole after a kill."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.chosen_run import printable
from toolkit.runfolder.end_record import settle_manifest
from toolkit.runfolder.repair import Repair, repair_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `telemetry repair`."""
    parser.add_argument("run", nargs="+", type=Path, help="a run folder")


def run(arguments: argparse.Namespace) -> int:
    """Repair each run folder; 1 where one could not be."""
    failed = False
    for folder in arguments.run:
        try:
            repair = repair_run(folder)
        except OSError as error:
            print(printable(f"{folder}: {error}"))
            failed = True
            continue
        if repair.in_use:
            print(printable(f"{folder}: a living process writes this run; nothing was touched"))
            failed = True
            continue
        try:
            ended = settle_manifest(folder)
        except OSError as error:
            print(printable(f"{folder}: {error}"))
            failed = True
            continue
        if ended is not None:
            print(printable(f"{folder}: run.json now says {ended}, as its end record does"))
        print(f"{printable(str(folder))}: {_done(repair)}")
        if repair.kept is not None:
            print(
                printable(
                    f"{folder}: the table that was there had more in it than the records; it is {repair.kept.name} now"
                )
            )
        for path, user in repair.of_others:
            print(
                printable(
                    f"{folder}: {path} may hold more records of it and belongs to user {user}: "
                    f"only that user can recover them, with `telemetry repair`"
                )
            )
            failed = True
        for left in repair.homeless:
            run = f"run {left.run_id}" if left.run_id else "a killed run"
            print(
                printable(
                    f"{folder}: {left.path} keeps {left.records} records of {run}, whose folder is not at "
                    f"{left.folder} any more: repair the folder where it is now, or delete the file"
                )
            )
    return 1 if failed else 0


def _done(repair: Repair) -> str:
    if repair.foreign:
        table = "is left as it is" if repair.left_alone else f"has {repair.rows} rows now"
        bad = f", {repair.bad_lines} lines that are no record" if repair.bad_lines else ""
        return f"{repair.foreign} records of another program, which need no repair; metrics.csv {table}{bad}"
    undeclared = f", {repair.undeclared} records missing and not declared lost" if repair.undeclared else ""
    return (
        f"{repair.recovered} records recovered, {repair.rows} rows in metrics.csv, "
        f"{repair.bad_lines} lines that are no record{undeclared}"
    )
