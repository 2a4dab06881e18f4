"""What the installed commands and MLflow's entry point start."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

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


def mlflow_store(store_uri: str | None = None, artifact_uri: str | None = None) -> Any:
    """Return MLflow's tracking store for `telemetry://FOLDER`; MLflow imports this module in every program."""
    find_toolkit()
    store = import_module("toolkit.telemetry.compat.mlflow_store.store")
    return store.TelemetryStore(store_uri, artifact_uri)
