"""Agent programs behind the Harness port."""
