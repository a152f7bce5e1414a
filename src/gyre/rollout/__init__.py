"""The supervisor process: one execution from task to outcome."""
