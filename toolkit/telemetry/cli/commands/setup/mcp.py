"""`telemetry mcp`: answer an agent's questions about runs over MCP."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Final

from toolkit.telemetry.cli.chosen_run import add_paths_argument, refuse
from toolkit.telemetry.core.install import install_extra

_NEEDED: Final = ("mcp", "numpy", "pyarrow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders, and whether runs may be asked for something."""
    add_paths_argument(parser, "folders of runs, runs, or files of other tools; nothing else is read")
    parser.add_argument(
        "--allow-requests",
        action="store_true",
        help="also offer tools that ask a live run to save, to stop or to log more or less often",
    )
    parser.epilog = (
        "Started by an agent's program, which speaks the Model Context Protocol over stdin and stdout; docs/agents.md "
        "has the configuration. Ends when stdin ends."
    )


def run(args: argparse.Namespace) -> int:
    """Answer until stdin ends; return 2 if it cannot start."""
    if any(find_spec(name) is None for name in _NEEDED):
        return refuse(f"an MCP server needs {install_extra('mcp')}")
    for path in args.paths:
        if not path.exists():
            return refuse(f"{path} does not exist; name a folder of runs")
    from toolkit.telemetry.agents.server import serve

    serve(args.paths, allow_requests=args.allow_requests)
    return 0
