"""Benchmarks of the logger and its peers, measured in one session."""
