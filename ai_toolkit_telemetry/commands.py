"""What the installed commands start."""

from __future__ import annotations

import sys
from importlib import import_module

from ai_toolkit_telemetry import find_toolkit


def telemetry() -> int:
    """Run the command `telemetry`."""
    find_toolkit(ours_first=True)
    code: int = import_module("toolkit.telemetry.cli.main").main()
    return code


def telemetry_dashboard() -> int:
    """Run the command `telemetry-dashboard`."""
    find_toolkit(ours_first=True)
    dashboard = import_module("toolkit.telemetry.cli.commands.look.dashboard")
    code: int = dashboard.serve(sys.argv[1:], prog="telemetry-dashboard")
    return code
