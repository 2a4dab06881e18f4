"""Reads the logs of other tools where they are: one file a format, read-only, without the tool itself."""
