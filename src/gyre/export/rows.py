"""The training rows of a run's executions, one execution in memory at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.loading import load
from gyre.trajectory.selection import Row, generator, row, select_trajectories
from gyre.types.ids import ExecutionId

FORMAT = 1
"""Version of the layouts that rows are written in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRows:
    """One execution's rows, in the order they were drawn (SPEC 7.2)."""

    execution: ExecutionId
    complete: bool
    rows: tuple[Row, ...]


Settings = Mapping[str, int | None]
"""How rows were drawn: format, seed, max_trajectories."""

Writer = Callable[[Path, Iterable[ExecutionRows], Settings], None]
"""Writes a whole file of rows; each format has one."""


@dataclass(slots=True)
class Totals:
    """Counts of what has been exported so far."""

    executions: int = 0
    incomplete: int = 0
    rows: int = 0
    tokens: int = 0
    targets: int = 0

    def counted(self, executions: Iterable[ExecutionRows]) -> Iterator[ExecutionRows]:
        """The same executions, counted as they pass."""
        for execution in executions:
            self.executions += 1
            self.incomplete += not execution.complete
            self.rows += len(execution.rows)
            self.tokens += sum(len(each.ids) for each in execution.rows)
            self.targets += sum(len(each.targets) for each in execution.rows)
            yield execution


def drawn(
    paths: Iterable[Path], *, seed: int, max_trajectories: int | None
) -> Iterator[ExecutionRows]:
    """The rows of each log; raises LogDamaged."""
    for path in paths:
        loaded = load(path)
        rng = generator(seed, loaded.execution)
        chosen = select_trajectories(loaded.tree, rng, max_trajectories=max_trajectories)
        yield ExecutionRows(
            execution=loaded.execution,
            complete=loaded.tree.is_complete,
            rows=tuple(row(loaded.tree, trajectory) for trajectory in chosen),
        )


def mask(one: Row) -> NDArray[np.bool_]:
    """True at each id of the row that is a target."""
    marked = np.zeros(len(one.ids), dtype=np.bool_)
    marked[one.targets] = True
    return marked
