"""`telemetry gc`: list what can be deleted, and delete it with --yes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Final

from toolkit.cli.argument_types import age, whole
from toolkit.cli.chosen_run import LOGS, printable, refuse
from toolkit.cli.leftovers import CACHE, TRASHED, WORSE_RUN, Best, Leftover, leftovers
from toolkit.cli.terminal import (
    Cell,
    Column,
    Progress,
    add_json_argument,
    age_text,
    print_json,
    print_table,
    size_text,
)

JSON_FORM: Final = """\
an object with `found`, `deleted` (whether `--yes` was given), `bytes` (of everything found) and `failed`. Each of \
`found` has `kind` (`trash`, `journal`, `half-written file`, `unfinished import`, `cache`, \
`run without a step` or `run that is not among the best`), \
`path`, `bytes`, `changed` and `why`; each of `failed` has `path` and `reason`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders and what may go."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help=f"folders of runs (default: {LOGS})",
    )
    really = parser.add_mutually_exclusive_group()
    really.add_argument(
        "--yes", action="store_true", help="delete what is listed; without it nothing changes"
    )
    really.add_argument("--dry-run", action="store_true", help="only list it, as without --yes")
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=age,
        default=0.0,
        help="only what was last changed longer ago, such as 12h, 30d or 4w; of trash, when it was deleted",
    )
    parser.add_argument("--keep-cache", action="store_true", help="leave the dashboard's cache")
    parser.add_argument(
        "--empty-runs",
        action="store_true",
        help="also runs that ended without a step, and are not in the trash",
    )
    parser.add_argument(
        "--keep-best",
        metavar="N",
        type=whole(),
        help="also runs that ended and are not among the N best of their folder; they go to the trash",
    )
    parser.add_argument(
        "--by",
        metavar="NAME",
        default="loss",
        help="what --keep-best compares: the last value of this metric, the smallest is the best (default: loss)",
    )
    parser.add_argument("--largest", action="store_true", help="with --keep-best: the largest is the best")
    parser.add_argument(
        "--orphans",
        action="store_true",
        help="also records in memory of killed runs whose folder is gone; they cannot be recovered afterwards",
    )
    add_json_argument(parser)
    parser.epilog = (
        "It never touches runs that are written now, records of a run that is there, or files of other tools. "
        "--keep-best reads all records of the runs; it leaves those without the value alone, and killed ones that "
        "`telemetry repair` was not run on. "
        "Exit code: 0; 1 if something could not be deleted; 2 if a PATH is not a folder."
    )


def run(args: argparse.Namespace) -> int:
    """List what can be deleted, and delete it if asked to."""
    places = args.paths or ([LOGS] if LOGS.is_dir() else [])
    for place in places:
        if not place.is_dir():
            return refuse(f"{place} is not a folder")
    now = time.time()
    best = None if args.keep_best is None else Best(args.keep_best, args.by, args.largest)
    found = [
        left
        for left in leftovers(places, orphans=args.orphans, empty_runs=args.empty_runs, best=best)
        if now - left.changed >= args.older_than and not (args.keep_cache and left.kind == CACHE)
    ]
    failed = _delete(found) if args.yes else []
    if args.json:
        print_json(
            {
                "found": [left.as_json() for left in found],
                "deleted": args.yes,
                "bytes": sum(left.bytes for left in found),
                "failed": failed,
            }
        )
    else:
        _print(found, now, is_deleted=args.yes)
    for failure in failed:
        refuse(f"{failure['path']}: {failure['reason']}")
    return 1 if failed else 0


def _delete(found: list[Leftover]) -> list[dict[str, Any]]:
    failed = []
    progress = Progress()
    for at, left in enumerate(found):
        progress.show(left.path.name, at, len(found))
        try:
            left.delete()
        except OSError as error:
            failed.append({"path": str(left.path), "reason": error.strerror or str(error)})
    progress.clear()
    return failed


def _print(found: list[Leftover], now: float, *, is_deleted: bool) -> None:
    if not found:
        print("nothing to delete")
        return
    rows: list[list[Cell]] = [
        [left.kind, size_text(left.bytes), age_text(now - left.changed), str(left.path), left.why]
        for left in found
    ]
    print_table(
        [
            Column("kind", keep=True),
            Column("size", right=True, keep=True),
            Column("age", right=True, keep=True),
            Column("path"),
            Column("what it is"),
        ],
        rows,
    )
    total = size_text(sum(left.bytes for left in found))
    moved = sum(left.kind == WORSE_RUN for left in found)
    if is_deleted:
        print(f"deleted: {size_text(sum(left.bytes for left in found if left.kind != WORSE_RUN))}")
        if moved:
            print(f"moved to the trash: {moved:,} {'run' if moved == 1 else 'runs'}")
        return
    print(f"{total} in all. Nothing was deleted; add --yes to delete it.")
    if any(left.kind == TRASHED for left in found):
        print(printable("A run in the trash can be restored on the Runs page until then."))
