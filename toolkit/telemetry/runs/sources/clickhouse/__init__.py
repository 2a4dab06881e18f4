"""Runs in ClickHouse."""
