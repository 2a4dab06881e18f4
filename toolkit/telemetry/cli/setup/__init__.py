"""What `telemetry setup` sets up, shows and tries."""
