"""What several mirrors use: numbers, attributes and filters as other tools take them."""
