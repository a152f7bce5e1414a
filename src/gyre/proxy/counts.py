"""What became of calls since a router began."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RouterCounts:
    """What has happened since the start."""

    calls: int = 0
    attempts: int = 0
    reroutes: int = 0
    """Attempts that continued a call elsewhere, or again at the same engine."""
    failures: dict[str, int] = field(default_factory=dict)
    """By kind: refused, error, abort, bad request, hang, stall. To drain is no failure."""
    breaker_opens: int = 0
    unavailable: int = 0
    """Calls given up because no engine came back in time."""
    held_s: float = 0.0
