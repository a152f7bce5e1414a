"""Rollouts and evaluations without training; task checks."""
