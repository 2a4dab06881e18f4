"""`python -m toolkit.telemetry.cli` is the command `telemetry`."""

from __future__ import annotations

from ai_toolkit_telemetry import telemetry

if __name__ == "__main__":
    raise SystemExit(telemetry())
