"""Records exceptions, exits, signals and hangs."""
