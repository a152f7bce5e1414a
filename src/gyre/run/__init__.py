"""Where rooms are joined into running processes."""
