"""Writes runs, ours and those of other tools, as tables, as logs of other tools and as run folders."""
