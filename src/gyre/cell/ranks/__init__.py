"""A cell of several ranks."""
