"""`telemetry attach`: record the trainings of an ai-toolkit checkout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.cli.chosen_run import refuse
from toolkit.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.integrations.ai_toolkit.attach import IMPORT_FIRST, AttachError, attach

JSON_FORM: Final = """\
an object with `attached` (the file that was written) and `all_jobs`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout and which jobs are recorded."""
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")
    parser.add_argument(
        "--all-jobs", action="store_true", help="also record jobs whose configuration has no telemetry: block"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file and print what happens now; return 2 if that failed."""
    try:
        path = attach(args.checkout, all_jobs=args.all_jobs)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json({"attached": str(path), "all_jobs": args.all_jobs})
        return 0
    which = "All trainings" if args.all_jobs else "Trainings whose configuration has a telemetry: block"
    print(f"Wrote {path}. {which} are recorded from now on.")
    print(f"To remove it: telemetry detach {args.checkout}")
    print(
        f"In your own scripts in that folder, put '{IMPORT_FIRST[0]}' before '{IMPORT_FIRST[1]}': "
        "there, 'toolkit' is ai-toolkit's package."
    )
    return 0
