"""Networks, weights, checkpoints."""
