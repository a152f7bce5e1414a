"""Where agent programs run."""
