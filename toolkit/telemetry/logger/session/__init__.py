"""One session of a logger: its set-up, its run, and its end."""
