"""`telemetry setup ai-toolkit`: record the trainings of an ai-toolkit checkout, by a file in its extensions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.integrations.ai_toolkit.attach import (
    IMPORT_FIRST,
    AttachError,
    attach,
    attached_file,
    detach,
    extension_text,
)

JSON_FORM: Final = """\
an object with `path` (of the file), `attached` and `current` (whether this version and installation wrote the file); \
with `detach`, `removed` (whether there was one)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to do, and the checkout."""
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=("attach", "detach", "status"),
        help="attach: add the file; detach: remove it; status: show whether trainings are recorded",
    )
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")
    add_json_argument(parser)
    parser.epilog = "Exit code: 0; 1 if status finds that it is not attached; 2 if it could not be done."


def run(args: argparse.Namespace) -> int:
    """Attach, detach or show; return 1 if `status` finds it not attached, 2 on a failure."""
    try:
        if args.action == "detach":
            return _detach(args)
        if args.action == "attach":
            attach(args.checkout)
        path, text = attached_file(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    is_current = text == extension_text()
    if args.json:
        print_json({"path": str(path), "attached": text is not None, "current": is_current})
    elif text is None:
        print(
            f"Not attached. To attach it: telemetry setup ai-toolkit attach {args.checkout} (writes {path})"
        )
    else:
        print(f"Attached by {path}, for jobs with a telemetry: block.")
        print(f"In your own scripts there, put '{IMPORT_FIRST[0]}' before '{IMPORT_FIRST[1]}'.")
        if not is_current:
            print("It was written by another version or installation: attach it again to update it.")
    return 1 if text is None else 0


def _detach(args: argparse.Namespace) -> int:
    path = detach(args.checkout)
    if args.json:
        print_json({"path": None if path is None else str(path), "removed": path is not None})
    else:
        print(
            f"Removed {path}." if path is not None else f"{args.checkout} is not attached: nothing to remove."
        )
    return 0
