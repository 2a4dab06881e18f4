"""`telemetry formats`: list the logs of other tools that can be read here."""

from __future__ import annotations

import argparse
import importlib.util
import json
from typing import Final

from toolkit.importers.detect import Format, formats

JSON_FORM: Final = """\
`{"formats": […]}`; each has `format` (its name for `--format`), `title`, `files`, `needs` (a package, or `null`) and \
`ready`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output format."""
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Print each format with its files and what it needs."""
    if args.json:
        rows = [
            {
                "format": entry.name,
                "title": entry.title,
                "files": entry.files,
                "needs": entry.needs or None,
                "ready": _is_ready(entry),
            }
            for entry in formats()
        ]
        print(json.dumps({"formats": rows}, indent=1))
        return 0
    width = max(len(entry.name) for entry in formats())
    for entry in formats():
        missing = "" if _is_ready(entry) else f"; to read it: pip install {entry.needs.split()[0]}"
        print(f"{entry.name:<{width}}  {entry.title} ({entry.files}){missing}")
    return 0


def _is_ready(entry: Format) -> bool:
    return not entry.needs or importlib.util.find_spec(entry.needs.split()[0]) is not None
