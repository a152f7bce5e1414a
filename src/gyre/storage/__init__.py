"""Durable files: atomic replace, framed logs, call log, write-ahead log."""
