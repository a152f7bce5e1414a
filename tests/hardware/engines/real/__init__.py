"""Real engines as child processes, and what is needed to judge them."""
