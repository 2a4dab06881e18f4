"""How often the three answers about runs are right: `python -m benchmarks.answers`."""
