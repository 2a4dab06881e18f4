"""Reads run folders into tables, behind the RunStore protocol."""
