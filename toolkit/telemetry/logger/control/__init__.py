"""Takes requests from control.json to the loop of every rank, at the same step."""
