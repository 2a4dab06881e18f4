"""`telemetry detach`: take the file of `telemetry attach` out of an ai-toolkit checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.chosen_run import refuse
from toolkit.telemetry.integrations.ai_toolkit.attach import AttachError, detach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout."""
    parser.add_argument(
        "checkout", metavar="CHECKOUT", type=Path, help="the folder of an ai-toolkit checkout"
    )


def run(args: argparse.Namespace) -> int:
    """Remove the file; 1 where it could not be, with the reason. None there is no failure."""
    try:
        path = detach(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    print(f"{path} is removed." if path is not None else f"Nothing of ours is in {args.checkout}.")
    return 0
