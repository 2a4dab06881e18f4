"""How often the answers of the product are right, on runs whose truth is known."""
