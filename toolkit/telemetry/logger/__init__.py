"""The logger: takes values from a training loop, returns at once, and keeps them in a run folder."""
