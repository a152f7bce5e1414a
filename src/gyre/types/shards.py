"""Shards of a run's proxy: which one an execution belongs to, and how what is theirs is named."""

from zlib import crc32


def shard_of(execution: str, shards: int) -> int:
    """Always the same one, for as long as there are so many."""
    return crc32(execution.encode(errors="surrogateescape")) % shards


def named(name: str, shard: int) -> str:
    """What the shard's own is called, where the only one's, or the first's, has this name."""
    return name if shard == 0 else f"{name}-{shard}"
