"""`telemetry dashboard`: show runs in a browser, from folders or from ClickHouse."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.core.install import install_extra

_CHECKOUT: Final = Path(__file__).parents[5]
_NO_OPTIONS: Final = "\0"
"""A character that begins no argument."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take every argument as it is, `--help` included: the dashboard parses them."""
    parser.prefix_chars = _NO_OPTIONS
    parser.add_argument(
        "options",
        metavar="OPTION",
        nargs=argparse.REMAINDER,
        help="such as --log-dir DIR, --store ADDRESS or --port N; --help lists all",
    )
    parser.epilog = (
        "It is the same program as `telemetry-dashboard`. "
        "`--log-dir` shows run folders, `--store clickhouse://…` what `telemetry ship` has copied there."
    )


def run(args: argparse.Namespace) -> int:
    """Serve pages until stopped; return the exit code of the dashboard, 2 if it is not installed."""
    return serve(args.options, prog="telemetry dashboard")


def serve(options: Sequence[str], *, prog: str) -> int:
    """Run the dashboard with these options under the name `prog`; return its exit code, 2 if it is not installed."""
    # By name: the toolkit works without the dashboard, and imports none of it.
    package = _dashboard()
    if package is None:
        return refuse(f"the dashboard is not installed: {install_extra('dashboard')}")
    code: int = importlib.import_module(f"{package}.launcher").main(options, prog=prog)
    return code


def _dashboard() -> str | None:
    """Return what the dashboard's package is called: in a checkout that is not installed it is next to `toolkit`."""
    if find_spec("ai_toolkit_telemetry.dashboard") is not None:
        return "ai_toolkit_telemetry.dashboard"
    found = find_spec("dashboard")
    is_ours = found is not None and found.origin == str(_CHECKOUT / "dashboard" / "__init__.py")
    return "dashboard" if is_ours else None
