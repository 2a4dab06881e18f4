"""Hangs made on real gloo ranks: whether the rank that the others wait for is named, and how soon."""
