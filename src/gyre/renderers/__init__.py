"""Messages to token ids and back, per model family."""
