"""The streaming training loop."""
