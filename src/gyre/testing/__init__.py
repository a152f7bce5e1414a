"""Verified fakes, public."""
