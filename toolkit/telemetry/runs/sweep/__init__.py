"""Which setting of a sweep mattered, and how sure that is."""
