"""A task becomes an execution: workspace, deadlines, and the facts of its end."""
