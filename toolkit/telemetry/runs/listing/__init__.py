"""The list of runs: cards, search, sort, tables of settings."""
