"""What every room builds on: the guard, clocks, threads, ranks, and fields that are checked."""
