"""`telemetry export`: write a run as a table, for another tool, as a run folder, as a trace, or as a zip to post."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.argument_types import refuse_misplaced
from toolkit.telemetry.cli.chosen_run import add_format_argument, add_run_argument, printable, refuse
from toolkit.telemetry.cli.export import shared_zip, trace
from toolkit.telemetry.cli.run_list import found_at
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.exchange.export_runs import FORMATS, default_out, export, read_about
from toolkit.telemetry.exchange.exported_run import ExportedRun, run_of_folder, run_of_source

ZIP: Final = "zip"
TRACE: Final = "trace"
_OF_POINTS: Final = ("metrics", "all_sessions", "format")

JSON_FORM: Final = f"""\
an object with `out`, `format`, `runs` (how many), `points` and `notes` (what the format cannot keep, and what was \
left out). With `--to zip`, {shared_zip.JSON_FORM} With `--to trace`, {trace.JSON_FORM}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, the format and the place."""
    add_run_argument(parser)
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        choices=(*FORMATS, TRACE, ZIP),
        required=True,
        help=f"write this format: {', '.join(FORMATS)}; {TRACE}, its spans for Perfetto; {ZIP}, a copy to post, "
        "without secrets, names, paths and texts",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="PATH",
        type=Path,
        help=f"file for tables, {TRACE} and {ZIP}, else folder (default: here, named after the run); - prints a trace",
    )
    parser.add_argument("--metrics", metavar="GLOB", help="only metrics whose names match, such as 'train/*'")
    parser.add_argument(
        "--all-sessions", action="store_true", help="also steps that a later session logged again"
    )
    parser.add_argument("--force", action="store_true", help="replace PATH, if an earlier export wrote it")
    add_format_argument(parser)
    shared_zip.add_arguments(parser)
    add_json_argument(parser)
    parser.epilog = (
        "RUN may also be a file or folder of another tool, but not for a zip or a trace. Nothing is sent: a W&B run is "
        "written offline, and `wandb sync` is up to you. Secrets in the configuration are masked. "
        "Exit code 2: it could not be done; the reason is on stderr."
    )


def run(args: argparse.Namespace) -> int:
    """Write the export; return 2 if it could not be done."""
    if args.to != ZIP:
        refuse_misplaced(args, shared_zip.OPTIONS, f"--to {ZIP}")
    if args.to in (ZIP, TRACE):
        refuse_misplaced(args, _OF_POINTS, f"--to {', '.join(FORMATS)}")
    try:
        if args.to == ZIP:
            return shared_zip.run(args)
        return trace.run(args) if args.to == TRACE else _export(args)
    except ModuleNotFoundError as error:
        return refuse(str(error))


def _export(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="telemetry-export-") as scratch:
        runs, notes = _runs(args, Path(scratch))
        for found in runs:
            found.metrics, found.all_sessions = args.metrics, args.all_sessions
        read_about(runs)
        out = args.out if args.out is not None else default_out(runs, args.to)
        done = export(runs, args.to, out, force=args.force)
    notes = [*notes, *done.notes]
    if args.json:
        about = {"out": os.fspath(done.out), "format": args.to, "runs": len(runs), "points": done.points}
        print_json({**about, "notes": notes})
        return 0
    print(printable(f"{done.out}: {done.points:,} points of {len(runs)} run{'s' if len(runs) != 1 else ''}"))
    for note in notes:
        print(printable(f"note: {note}"))
    return 0


def _runs(args: argparse.Namespace, scratch: Path) -> tuple[list[ExportedRun], Sequence[str]]:
    """Return our run at RUN, or the runs of other tools there. Raises OSError if there is none."""
    found = found_at(args.run, args.format)
    runs = [
        run_of_folder(run.path, run.called)
        if run.source is None
        else run_of_source(run.source, run.called, scratch)
        for run in found.runs
    ]
    return runs, found.notes
