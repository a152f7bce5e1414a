"""The built-in engine."""
