"""Where processes start, and process handles."""
