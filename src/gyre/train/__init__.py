"""Cells turn micro-steps into one update."""
