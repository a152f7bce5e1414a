"""A tracker that keeps what is logged, and fails or waits on demand."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedValue:
    """One value as it arrived."""

    name: str
    step: int
    value: float


@dataclass(slots=True, kw_only=True)
class MemoryTracker:
    """Values in memory; give the list of another to go on where that one ended."""

    logged: list[LoggedValue] = field(default_factory=list)
    failing: set[Literal["log", "close"]] = field(default_factory=set)
    """What raises an OSError."""
    open_gate: threading.Event | None = None
    """A log waits until it is set."""
    num_closed: int = 0

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        if self.open_gate is not None:
            self.open_gate.wait()
        if "log" in self.failing:
            raise OSError("no space left")
        self.logged += [
            LoggedValue(name=name, step=step, value=one) for name, one in values.items()
        ]

    def close(self) -> None:
        self.num_closed += 1
        if "close" in self.failing:
            raise OSError("gone")
