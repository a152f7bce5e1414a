"""Places for metrics behind the Tracker port."""
