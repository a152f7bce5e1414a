"""The cells of a run: processes, roles, health, checkpoints."""
