"""What is going wrong in a run, from its records: the same code beside the live loop and over history."""
