"""A step from `log_step` to its record."""
