"""Everything that follows metrics.jsonl on a thread of its own."""
