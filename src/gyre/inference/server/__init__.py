"""The HTTP server of the built-in engine."""
