"""`python -m ai_toolkit_telemetry` is the command `telemetry`."""

from __future__ import annotations

from ai_toolkit_telemetry.commands import telemetry

if __name__ == "__main__":
    raise SystemExit(telemetry())
