"""Makes run folders of other tools' logs, and other tools' logs of runs."""
