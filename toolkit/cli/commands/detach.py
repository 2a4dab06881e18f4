"""`telemetry detach`: remove the file that `telemetry attach` added to an ai-toolkit checkout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.cli.chosen_run import refuse
from toolkit.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.integrations.ai_toolkit.attach import AttachError, detach

JSON_FORM: Final = """\
an object with `removed`: the file, or `null` if there was none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout."""
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Remove the file; return 2 if that failed. A checkout that is not attached is no failure."""
    try:
        path = detach(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json({"removed": None if path is None else str(path)})
        return 0
    print(f"Removed {path}." if path is not None else f"{args.checkout} is not attached: nothing to remove.")
    return 0
