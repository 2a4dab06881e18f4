"""Options that are blocks of their own inside the `telemetry:` block, one file each."""
