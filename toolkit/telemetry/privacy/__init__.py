"""Finds secrets and private data, and masks or replaces them."""
