"""Whether a resumed session continues the same training: one judge, for commands, pages and live runs."""
