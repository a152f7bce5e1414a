"""The nouns every room shares; imports nothing else of Gyre."""
