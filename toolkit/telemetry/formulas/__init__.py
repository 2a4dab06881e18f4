"""Formulas over metrics: one small language for curves, axes, columns of the run table and rules of one's own."""
