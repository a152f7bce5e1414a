"""Whether an engine may get calls, judged by its last calls and probes."""

from enum import Enum

MOST_DOUBLINGS = 3
"""Probes of an engine that stays away are at most eight times as far apart as the first."""


class BreakerState(Enum):
    """How far an engine is trusted."""

    CLOSED = "ready"
    """The circuit is closed: it gets calls."""
    TRIAL = "on trial"
    """A probe succeeded: it gets one call, and more once that call has sampled something."""
    OPEN = "broken"
    """It gets no calls until a probe succeeds."""


class CircuitBreaker:
    """Whether one engine gets calls after failures; pure: the router waits and probes."""

    def __init__(self, *, break_after: int, probe_s: float) -> None:
        self._break_after = break_after
        self._probe_s = probe_s
        self._failures = 0
        self._setbacks = 0
        self._tried = False
        self.trust = BreakerState.CLOSED

    @property
    def admits(self) -> bool:
        """Whether another call may be given."""
        return self.trust is BreakerState.CLOSED or (
            self.trust is BreakerState.TRIAL and not self._tried
        )

    @property
    def pause_s(self) -> float:
        """How long to wait before the next probe."""
        return float(self._probe_s * 2 ** min(self._setbacks, MOST_DOUBLINGS))

    def given(self) -> None:
        """Notes that a call was given to the engine."""
        self._tried = self.trust is BreakerState.TRIAL

    def returned(self) -> None:
        """Notes that a call has left the engine, with or without output."""
        self._tried = False

    def sampled(self) -> bool:
        """Notes sampled tokens; whether that ends the engine's trial and it may get more calls.

        It stays one failure from being broken, until a call finishes.
        """
        if self.trust is not BreakerState.TRIAL:
            return False
        self.trust = BreakerState.CLOSED
        self._failures = self._break_after - 1
        return True

    def finished(self) -> None:
        """Notes that a call came to its proper end, which alone clears earlier failures."""
        if self.trust is not BreakerState.OPEN:
            self.trust = BreakerState.CLOSED
            self._failures = 0
            self._setbacks = 0

    def failed(self, *, at_once: bool = False) -> bool:
        """Notes a failed call; whether that broke the circuit, at once if `at_once`."""
        if self.trust is BreakerState.OPEN:
            return False
        self._failures += 1
        if self.trust is BreakerState.TRIAL:
            self._setbacks += 1
        elif not at_once and self._failures < self._break_after:
            return False
        self.trust = BreakerState.OPEN
        return True

    def probed(self, ready: bool) -> None:
        """Notes whether a probe of the broken engine was answered."""
        if self.trust is not BreakerState.OPEN:
            return
        if ready:
            self.trust = BreakerState.TRIAL
            self._tried = False
        else:
            self._setbacks += 1
