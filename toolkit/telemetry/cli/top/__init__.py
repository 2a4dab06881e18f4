"""Runs, curves and findings, live in a terminal."""
