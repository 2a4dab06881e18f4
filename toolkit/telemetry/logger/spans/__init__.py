"""Times parts of the work, adds up the short ones and writes the long ones."""
