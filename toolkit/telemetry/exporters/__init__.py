"""Mirrors of a run in other people's tools; the record file stays the truth."""
