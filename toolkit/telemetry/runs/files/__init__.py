"""Pictures, tables and texts that a run saved."""
