"""What each rank runs: copied beside a run, where one rank may get another version."""
