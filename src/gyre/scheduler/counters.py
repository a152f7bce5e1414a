"""Dispatched, launched and terminated executions, and the waterlevel they define."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Three cumulative counts with 0 <= terminated <= launched <= dispatched (SPEC 1.2)."""

    dispatched: int = 0
    """d."""
    launched: int = 0
    """p."""
    terminated: int = 0
    """f."""

    @property
    def queued(self) -> int:
        return self.dispatched - self.launched

    @property
    def running(self) -> int:
        return self.launched - self.terminated

    @property
    def waterlevel(self) -> int:
        """w: executions that still need rollout capacity, queued or running."""
        return self.dispatched - self.terminated
