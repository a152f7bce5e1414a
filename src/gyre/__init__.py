"""Online reinforcement learning for agents that run for hours."""
