"""`telemetry status`: whether an ai-toolkit checkout records its trainings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from toolkit.cli.chosen_run import refuse
from toolkit.cli.terminal import add_json_argument, print_json
from toolkit.telemetry.integrations.ai_toolkit.attach import IMPORT_FIRST, AttachError, status

JSON_FORM: Final = """\
an object with `attached`, `path` (of the file, also if it is not there), `all_jobs`, `toolkit_folder` (where the \
package is loaded from) and `current` (`false` if another version wrote the file)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the checkout."""
    parser.add_argument("checkout", metavar="CHECKOUT", type=Path, help="folder of an ai-toolkit checkout")
    add_json_argument(parser)
    parser.epilog = "Exit code: 0 if it is attached; 1 if it is not; 2 if it cannot be checked."


def run(args: argparse.Namespace) -> int:
    """Print whether the checkout is attached; return 1 if it is not, 2 if it cannot be checked."""
    try:
        found = status(args.checkout)
    except (AttachError, OSError) as error:
        return refuse(str(error))
    if args.json:
        print_json(
            {
                "attached": found.is_there,
                "path": str(found.path),
                "all_jobs": found.all_jobs if found.is_there else None,
                "toolkit_folder": str(found.toolkit_folder) if found.is_there else None,
                "current": found.is_current if found.is_there else None,
            }
        )
        return 0 if found.is_there else 1
    if not found.is_there:
        print(f"Not attached. To attach it: telemetry attach {args.checkout} (writes {found.path})")
        return 1
    jobs = "every job" if found.all_jobs else "jobs with a telemetry: block"
    print(f"Attached by {found.path}, for {jobs}; the package is loaded from {found.toolkit_folder}.")
    print(f"In your own scripts there, put '{IMPORT_FIRST[0]}' before '{IMPORT_FIRST[1]}'.")
    if not found.is_current:
        print(
            f"It was written by another version or installation. To update it: telemetry attach {args.checkout}"
        )
    return 0
