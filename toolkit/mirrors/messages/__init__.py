"""Messages about a run to people who are elsewhere."""
