"""Turns whatever a caller hands over into numbered, encoded lines."""
