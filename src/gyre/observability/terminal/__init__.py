"""A run on a terminal."""
