"""`telemetry top`: runs, curves and findings, live in the terminal."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

from toolkit.telemetry.cli.chosen_run import add_paths_argument, no_run_in, refuse, runs_given
from toolkit.telemetry.core.install import install_extra


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders."""
    add_paths_argument(parser)
    parser.epilog = (
        "The last line shows the keys. Exit code: 0; 2 without a terminal, or if a FOLDER does not exist."
    )


def run(args: argparse.Namespace) -> int:
    """Show the runs until `q` is pressed."""
    folders = runs_given(args.paths)
    for path, near in folders.unknown.items():
        return refuse(no_run_in(path, near=near))
    if find_spec("textual") is None:
        return refuse(f"telemetry top needs {install_extra('top')}")
    is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
    if is_dumb or not all(os.isatty(number) for number in (0, 1, 2)):
        why = " that can move its cursor, and TERM is dumb or not set" * is_dumb
        return refuse(f"telemetry top needs a terminal{why}; `telemetry ls` and `telemetry tail` do not")
    from toolkit.telemetry.cli.top.app import Top

    app = Top(folders)
    # The terminal keeps its own way to select text.
    app.run(mouse=False)
    return app.return_code or 0
