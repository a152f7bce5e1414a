"""What engine and trainer share of a network."""
