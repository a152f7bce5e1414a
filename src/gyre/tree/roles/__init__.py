"""Whose call it is and what for: one small table of markers per harness (SPEC 5)."""
