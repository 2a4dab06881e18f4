"""What `telemetry show` shows of a run if it is asked for."""
