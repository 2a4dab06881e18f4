"""What is wrong with a run, and what to do."""
