"""What is going wrong in a run, from its records: the same code next to the live loop and over history."""
