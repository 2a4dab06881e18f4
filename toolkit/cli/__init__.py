"""The `telemetry` command: one file a subcommand."""
