"""What `telemetry export` writes that is no table and not for another tool's store."""
