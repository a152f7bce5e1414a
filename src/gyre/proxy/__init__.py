"""Harness calls in, engine answers out, every token kept."""
