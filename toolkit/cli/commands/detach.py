"""`telemetry detach`: remove the file that `telemetry attach` added to an ai-toolkit checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.chosen_run import refuse
from toolkit.telemetry.integrations.ai_toolkit.attach import AttachError, detach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout."""
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")


def run(args: argparse.Namespace) -> int:
    """Remove the file; return 2 if that failed. A checkout that is not attached is no failure."""
    try:
        path = detach(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    print(f"Removed {path}." if path is not None else f"{args.checkout} is not attached: nothing to remove.")
    return 0
