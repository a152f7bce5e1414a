"""Bytes and tensors between processes."""
