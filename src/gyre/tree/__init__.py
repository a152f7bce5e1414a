"""Calls become a tree of tokens, and the tree becomes trajectories."""
