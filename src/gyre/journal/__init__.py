"""The run journal: one writer, many readers."""
