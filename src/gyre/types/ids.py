"""Typed ids (ExecutionId, EngineName, CallId...) and the shard an execution belongs to."""

from typing import NewType
from zlib import crc32

GroupId = NewType("GroupId", int)
"""A group, numbered by the scheduler from 0 in the order of dispatch."""
CellId = NewType("CellId", int)
"""A cell by its place in the order, 0 the core."""
EngineId = NewType("EngineId", int)
"""An engine: cell c's is number c, standalone ones follow from K on."""


CORE = CellId(0)

ExecutionId = NewType("ExecutionId", str)
"""One attempt at a task: letters, digits, '-', '_' and '.', at most 128 of them."""

CallId = NewType("CallId", int)
"""A model call within its execution, counted from 1 in the order calls were opened."""

SegmentId = NewType("SegmentId", int)
"""A stretch of tokens in an execution's tree; 0 is the root, which holds none."""

EngineName = NewType("EngineName", str)
"""An engine as the configuration names it."""

ROOT = SegmentId(0)


def evaluation_name(number: int) -> ExecutionId:
    """Of a run's held-out evaluations, which are numbered from 0 (SPEC 6.6)."""
    return ExecutionId(f"eval-{number:06d}")


def shard_of(execution: str, shards: int) -> int:
    """Always the same one, for as long as there are so many."""
    return crc32(execution.encode(errors="surrogateescape")) % shards


def named(name: str, shard: int) -> str:
    """What the shard's own is called, where the only one's, or the first's, has this name."""
    return name if shard == 0 else f"{name}-{shard}"
