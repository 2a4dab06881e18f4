"""`telemetry dashboard`: show runs in a browser, from folders or from ClickHouse."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec
from typing import Final

from toolkit.telemetry.cli.chosen_run import refuse
from toolkit.telemetry.core.install import install_extra

_LAUNCHER: Final = "dashboard.launcher"
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
    # By name: the toolkit works without the dashboard, and imports none of it.
    if find_spec(_LAUNCHER.partition(".")[0]) is None:
        return refuse(f"the dashboard is not installed: {install_extra('dashboard')}")
    code: int = importlib.import_module(_LAUNCHER).main(args.options, prog="telemetry dashboard")
    return code
