"""`telemetry archive`: write finished runs as Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import LOGS, print_to_stderr, refuse
from toolkit.telemetry.cli.run_list import chosen_run
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.fleet.address import AddressError
from toolkit.telemetry.fleet.archive import archive_runs
from toolkit.telemetry.fleet.object_store import FORMS, PlaceError, StoreError, object_store
from toolkit.telemetry.fleet.options import add_config_argument, add_endpoint_argument, fill_in
from toolkit.telemetry.fleet.run_folders import existing_folders, matching_folders

JSON_FORM: Final = "an object with `written`, `unchanged`, `live` and `failed`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders and the place."""
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="*",
        type=Path,
        help=f"log directories or run folders, or patterns such as '/scratch/*/logs', in quotes (default: {LOGS})",
    )
    parser.add_argument("--to", dest="archive_to", metavar="PLACE", help=f"where the files go: {FORMS}")
    add_endpoint_argument(parser)
    add_config_argument(parser)
    add_json_argument(parser)
    parser.epilog = (
        "It reads the folders, needs no engine, and writes a run again only if it changed. "
        "Exit code: 0; 1 if a run could not be written; 2 if nothing could be done."
    )


def run(args: argparse.Namespace) -> int:
    """Write the finished runs; return 1 if one could not be written, 2 if none could."""
    try:
        fill_in(args, "archive")
        if args.archive_to is None:
            return refuse(f"where should the files go? --to PLACE, with {FORMS}")
        given = args.folders or [LOGS]
        places = [place if matching_folders(place) else chosen_run(place) for place in given]
        done = archive_runs(
            existing_folders(places),
            object_store(args.archive_to, args.objects_endpoint),
            say=print_to_stderr,
        )
    except (AddressError, PlaceError, StoreError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json({name: getattr(done, name) for name in ("written", "unchanged", "live", "failed")})
    else:
        print(
            f"{done.written} runs archived, {done.unchanged} were there already, {done.live} not finished, "
            f"{done.failed} failed"
        )
    return 1 if done.failed else 0
