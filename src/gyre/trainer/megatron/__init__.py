"""Trainers whose layers are computed by Megatron-core."""
