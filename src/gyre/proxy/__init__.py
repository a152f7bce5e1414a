"""The recording proxy: dialects, sessions, routing."""
