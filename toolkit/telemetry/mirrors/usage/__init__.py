"""Anonymous usage reports: what they hold, whether they may be sent, and how they get there."""
