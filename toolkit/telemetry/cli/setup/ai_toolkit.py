"""`telemetry setup ai-toolkit`: record the trainings of an ai-toolkit checkout, by a file in its extensions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.integrations.ai_toolkit.attach import (
    IMPORT_FIRST,
    AttachError,
    Attachment,
    attach,
    detach,
    status,
)

JSON_FORM: Final = """\
an object with `path` (of the file), `attached` and, if it is, `all_jobs`, `toolkit_folder` (where the package is \
loaded from) and `current` (whether this version wrote the file); with `detach`, `removed` (whether there was one)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to do, the checkout and which jobs are recorded."""
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=("attach", "detach", "status"),
        help="attach: add the file; detach: remove it; status: show whether trainings are recorded",
    )
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")
    parser.add_argument(
        "--all-jobs", action="store_true", help="also record jobs whose configuration has no telemetry: block"
    )
    add_json_argument(parser)
    parser.epilog = "Exit code: 0; 1 if status finds that it is not attached; 2 if it could not be done."


def run(args: argparse.Namespace) -> int:
    """Attach, detach or show; return 1 if `status` finds it not attached, 2 on a failure."""
    try:
        if args.action == "detach":
            return _detach(args)
        if args.action == "attach":
            attach(args.checkout, all_jobs=args.all_jobs)
        found = status(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json(_as_json(found))
    elif found.is_there:
        jobs = "every job" if found.all_jobs else "jobs with a telemetry: block"
        print(f"Attached by {found.path}, for {jobs}; the package is loaded from {found.toolkit_folder}.")
        print(f"In your own scripts there, put '{IMPORT_FIRST[0]}' before '{IMPORT_FIRST[1]}'.")
        if not found.is_current:
            print("It was written by another version or installation: attach it again to update it.")
    else:
        print(
            f"Not attached. To attach it: telemetry setup ai-toolkit attach {args.checkout} (writes {found.path})"
        )
    return 0 if found.is_there else 1


def _detach(args: argparse.Namespace) -> int:
    path = detach(args.checkout)
    if args.json:
        print_json({"path": None if path is None else str(path), "removed": path is not None})
    else:
        print(
            f"Removed {path}." if path is not None else f"{args.checkout} is not attached: nothing to remove."
        )
    return 0


def _as_json(found: Attachment) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "attached": found.is_there,
        "all_jobs": found.all_jobs if found.is_there else None,
        "toolkit_folder": str(found.toolkit_folder) if found.is_there else None,
        "current": found.is_current if found.is_there else None,
    }
