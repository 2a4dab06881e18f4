"""What each rank runs: copied next to a run, where one rank may get another version."""
