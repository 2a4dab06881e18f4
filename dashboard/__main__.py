"""`python -m dashboard` is `telemetry-dashboard`."""

from __future__ import annotations

from ai_toolkit_telemetry import telemetry_dashboard

if __name__ == "__main__":
    raise SystemExit(telemetry_dashboard())
