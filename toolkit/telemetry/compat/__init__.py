"""Doors for code that was written for another logger; each is imported only by who goes through it."""
