"""Sandboxes of namespaces on this machine."""
