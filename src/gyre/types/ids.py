"""Names for things, each of its own type so that one cannot pass for another."""

from typing import NewType

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
