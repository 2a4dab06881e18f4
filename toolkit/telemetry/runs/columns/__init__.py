"""The records of a run as columns: read, thinned, exported."""
