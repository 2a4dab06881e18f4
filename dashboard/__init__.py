"""The pages people look at: what a run folder says, in a browser."""
