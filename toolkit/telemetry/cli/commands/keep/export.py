"""`telemetry export`: write a run in the format of another tool, as a table, or as a run folder of ours."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import add_run_argument, found_at, printable
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.exchange.export_runs import FORMATS, default_out, export, read_about
from toolkit.telemetry.exchange.exported_run import ExportedRun, run_of_folder, run_of_source
from toolkit.telemetry.importers.detect import names_of

JSON_FORM: Final = """\
an object with `out`, `format`, `runs` (how many), `points` and `notes` (what the format cannot keep, and what was \
left out)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, the format and the place."""
    add_run_argument(parser)
    parser.add_argument("--to", metavar="FORMAT", choices=FORMATS, required=True, help="write this format")
    parser.add_argument(
        "--out",
        metavar="PATH",
        type=Path,
        help="file for tables, else folder (default: here, named after the run)",
    )
    parser.add_argument("--metrics", metavar="GLOB", help="only metrics whose names match, such as 'train/*'")
    parser.add_argument(
        "--wide", action="store_true", help="tables: one row a record and one column a metric"
    )
    parser.add_argument(
        "--all-sessions", action="store_true", help="also steps that a later session logged again"
    )
    parser.add_argument("--force", action="store_true", help="replace PATH, if an earlier export wrote it")
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        choices=names_of(),
        help="read RUN as another tool's log, in this format only",
    )
    add_json_argument(parser)
    parser.epilog = (
        "RUN may also be a file or folder of another tool. Nothing is sent: a W&B run is written offline, and "
        "`wandb sync` is up to you. Secrets in the configuration are masked. "
        "Exit code 2: it could not be done; the reason is on stderr."
    )


def run(args: argparse.Namespace) -> int:
    """Write the export; return 2 if it could not be done."""
    with tempfile.TemporaryDirectory(prefix="telemetry-export-") as scratch:
        try:
            runs, notes = _runs(args, Path(scratch))
            for found in runs:
                found.metrics, found.all_sessions = args.metrics, args.all_sessions
            read_about(runs)
            out = args.out if args.out is not None else default_out(runs, args.to)
            done = export(runs, args.to, out, wide=args.wide, force=args.force)
        except (OSError, ModuleNotFoundError) as error:
            print(printable(str(error)), file=sys.stderr)
            return 2
    notes += done.notes
    if args.json:
        about = {
            "out": os.fspath(done.out),
            "format": args.to,
            "runs": len(runs),
            "points": done.points,
            "notes": notes,
        }
        print_json(about)
        return 0
    print(printable(f"{done.out}: {done.points:,} points of {len(runs)} run{'s' if len(runs) != 1 else ''}"))
    for note in notes:
        print(printable(f"note: {note}"))
    return 0


def _runs(args: argparse.Namespace, scratch: Path) -> tuple[list[ExportedRun], list[str]]:
    """Return our run at RUN, or the runs of other tools there.

    Raises:
        OSError: there is none.
    """
    found = found_at(args.run, args.format)
    if found.folder is not None:
        return [run_of_folder(found.folder)], []
    return [run_of_source(source, scratch) for source in found.others], list(found.notes)
