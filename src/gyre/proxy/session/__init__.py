"""The pure session: histories matched to a tree of tokens."""
