"""Adapters to the outside, one family per file, with no decisions of their own."""
