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
    midway: int = 0
    """Calls that were sent elsewhere with tokens sampled already."""
    hand_overs: int = 0
    """Calls whose cached blocks followed them."""
    lost_hand_overs: int = 0
    """Calls whose blocks should have, and did not in time."""
    carried_bytes: int = 0
    carried_tokens: int = 0
    again_tokens: int = 0
    """Tokens that calls had when they moved, and that did not follow them: computed again, unless
    the engine knew them already."""
