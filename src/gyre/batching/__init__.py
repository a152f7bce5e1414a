"""Ready groups become claims for training cells."""
