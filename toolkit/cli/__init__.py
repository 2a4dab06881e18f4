"""The `telemetry` command."""
