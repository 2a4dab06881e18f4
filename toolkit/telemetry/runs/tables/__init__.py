"""Runs, ours and those of other tools, as tables: for SQL and for DataFrames."""
