"""What a model answered: how much of it is kept, in which form, and how it gets into the records."""
