"""Trainers behind the Trainer port."""
