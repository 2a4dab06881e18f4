"""The old path of toolkit.privacy, kept for scripts that import from it."""
