"""A ready group becomes work for cells."""
