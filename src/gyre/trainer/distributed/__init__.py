"""Training over several ranks and several cells."""
