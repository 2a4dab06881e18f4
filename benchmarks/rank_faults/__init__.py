"""Faults injected on real gloo ranks: which of them the live run names, how soon, and how often it is wrong."""
