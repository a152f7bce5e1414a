"""Calls as a token tree; which trajectories are trained."""
