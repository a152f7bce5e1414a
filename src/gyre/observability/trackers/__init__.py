"""Metrics sent to trackers."""
