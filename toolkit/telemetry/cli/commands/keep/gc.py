"""`telemetry gc`: list what can be deleted, and delete it with --yes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.argument_types import age
from toolkit.telemetry.cli.chosen_run import LOGS, refuse
from toolkit.telemetry.cli.leftovers import CACHE, OLD_RUN, Leftover, delete_or_list, leftovers
from toolkit.telemetry.cli.terminal import add_json_argument
from toolkit.telemetry.runs.formatting import size

JSON_FORM: Final = """\
an object with `found`, `deleted` (whether `--yes` was given), `bytes` (of everything found) and `failed`. Each of \
`found` has `kind` (`trash`, `journal`, `half-written file`, `cache`, \
`run without a step` or `old run`), `path`, `bytes`, `changed` and `why`; each of `failed` has `path` and `reason`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders and what may go."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="*", type=Path, help=f"folders of runs (default: {LOGS})"
    )
    parser.add_argument(
        "--yes", action="store_true", help="delete what is listed; without it nothing changes"
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=age,
        default=0.0,
        help="only what was last changed longer ago, such as 12h, 30d or 4w; of trash, when it was deleted",
    )
    parser.add_argument(
        "--runs",
        action="store_true",
        help="with --older-than: also runs that ended and were last written longer ago; they go to the trash",
    )
    parser.add_argument("--keep-cache", action="store_true", help="leave the dashboard's cache")
    parser.add_argument(
        "--empty-runs",
        action="store_true",
        help="also runs that ended without a step; they go to the trash",
    )
    parser.add_argument(
        "--orphans",
        action="store_true",
        help="also records in memory of killed runs whose folder is gone; they cannot be recovered afterwards",
    )
    add_json_argument(parser)
    parser.epilog = (
        "It never touches runs that are written now, records of a run that is there, or files of other tools. "
        "Exit code: 0; 1 if something could not be deleted; 2 if a PATH is not a folder."
    )


def run(args: argparse.Namespace) -> int:
    """List what can be deleted, and delete it if asked to."""
    places = args.paths or ([LOGS] if LOGS.is_dir() else [])
    for place in places:
        if not place.is_dir():
            return refuse(f"{place} is not a folder")
    if args.runs and not args.older_than:
        return refuse("--runs needs --older-than, such as --older-than 90d")
    now = time.time()
    found: dict[Path, Leftover] = {}
    old: list[Leftover] = []
    for left in leftovers(
        places,
        orphans=args.orphans,
        empty_runs=args.empty_runs,
        old_runs=args.older_than > 0,
    ):
        if now - left.changed < args.older_than or (args.keep_cache and left.kind == CACHE):
            continue
        if left.kind == OLD_RUN and not args.runs:
            old.append(left)
        else:
            found.setdefault(left.path, left)
    code = delete_or_list(list(found.values()), args)
    left_alone = [left for left in old if left.path not in found]
    if left_alone and not args.json:
        held = size(sum(left.bytes for left in left_alone))
        print(f"{len(left_alone):,} runs are older than that too, {held}: --runs moves them to the trash.")
    return code
