"""Tasks behind the TaskSource port."""
