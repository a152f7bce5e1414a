"""A run as files for other tools."""
