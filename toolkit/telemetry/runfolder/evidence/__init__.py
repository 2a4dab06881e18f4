"""Files next to the records that show what was trained: its batches, its code, and what it printed."""
