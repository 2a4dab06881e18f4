"""metrics.csv: the records as one wide table."""
