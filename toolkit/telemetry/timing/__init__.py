"""Where the time of a run went: spans, what they mean, and a ledger that adds up."""
