"""Which engine a call goes to, and how it moves."""
