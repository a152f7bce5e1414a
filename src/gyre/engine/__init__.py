"""The embedded engine: calls become passes over one network, and their tokens chunks."""
