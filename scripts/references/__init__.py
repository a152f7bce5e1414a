"""Pages of reference that are written from the sources, as lines."""
