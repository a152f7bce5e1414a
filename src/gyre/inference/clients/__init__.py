"""Clients of inference engines, behind the Engine protocol."""
