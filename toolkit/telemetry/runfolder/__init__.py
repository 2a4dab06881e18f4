"""The single description of a run on disk: its files, their records, and how both are read and written."""
