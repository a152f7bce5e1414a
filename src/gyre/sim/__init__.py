"""The scheduler in virtual time, and what can be said of it without running it."""
