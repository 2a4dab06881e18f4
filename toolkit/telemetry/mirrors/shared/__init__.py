"""Shared by several mirrors: metrics, span attributes and span filters."""
