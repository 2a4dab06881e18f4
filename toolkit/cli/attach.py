"""`telemetry attach`: have an ai-toolkit checkout record its trainings, by one file in its extensions."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.chosen_run import refuse
from toolkit.telemetry.integrations.ai_toolkit.attach import IMPORT_FIRST, AttachError, attach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout, and which of its jobs are recorded."""
    parser.add_argument(
        "checkout", metavar="CHECKOUT", type=Path, help="the folder of an ai-toolkit checkout"
    )
    parser.add_argument(
        "--all-jobs",
        action="store_true",
        help="record jobs whose configuration has no telemetry: block, too",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and say what happens now; 1 where it could not be, with the reason."""
    try:
        path = attach(args.checkout, all_jobs=args.all_jobs)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    which = "All trainings" if args.all_jobs else "Trainings whose configuration has a telemetry: block"
    print(f"{path} is written. {which} are recorded from now on.")
    print(f"'telemetry detach {args.checkout}' removes it.")
    print(
        f"In a script of your own in that folder, '{IMPORT_FIRST[0]}' goes before '{IMPORT_FIRST[1]}': "
        "'toolkit' is ai-toolkit's package there."
    )
    return 0
