"""Shared dataclasses, errors and protocols; imports nothing of Gyre."""
