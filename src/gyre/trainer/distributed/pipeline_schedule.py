"""Which forward and backward passes a pipeline stage runs, by the headers it receives."""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from gyre.types.errors import InternalError


class HeaderKind(IntEnum):
    """What a header asks of every stage; numbers, because they travel as such."""

    RUN = 1
    """Forward of a micro-step whose backward comes later."""
    SCORE = 2
    """Forward alone, for the sums that have to be known before any backward (SPEC 8.3)."""
    PAUSE = 3
    """No data for now; what is in flight stays (SPEC 3.5)."""
    CLOSE = 4
    """The batch has ended; what is in flight gets its backward."""


@dataclass(frozen=True, slots=True)
class ForwardAction:
    """The micro-step passes the stage."""

    serial: int
    is_kept: bool
    """Whether its activations stay for a backward pass."""


@dataclass(frozen=True, slots=True)
class BackwardAction:
    """The gradient of the oldest micro-step in flight passes the stage."""

    serial: int


Action = ForwardAction | BackwardAction


class Schedule:
    """One forward, one backward (1F1B) of stage `stage` among `stages`, over an endless stream.

    Rule 1: after a forward, the oldest goes backward when more than stages - stage - 1 are in
    flight, so the last stage keeps none and the first one fewer than there are stages.
    Rule 2: headers alone decide, so all stages that heard the same headers stand at one point.
    """

    def __init__(self, stage: int, stages: int) -> None:
        if not 0 <= stage < stages:
            message = f"there is no stage {stage} of {stages}"
            raise InternalError(message)
        self.most_waiting = stages - stage - 1
        """How many stay in flight between two headers."""
        self._heard = 0
        self._in_flight: deque[int] = deque()

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Serial numbers that have had their forward and not their backward, oldest first."""
        return tuple(self._in_flight)

    def hear(self, kind: HeaderKind) -> list[Action]:
        """What the stage now does, in this order; RUN and SCORE number micro-steps from 0."""
        match kind:
            case HeaderKind.RUN:
                return [self._forward(), *self._backward(self.most_waiting)]
            case HeaderKind.SCORE:
                return [ForwardAction(self._next(), is_kept=False)]
            case HeaderKind.PAUSE:
                return []
            case HeaderKind.CLOSE:
                return list[Action](self._backward(0))

    def _next(self) -> int:
        self._heard += 1
        return self._heard - 1

    def _forward(self) -> ForwardAction:
        serial = self._next()
        self._in_flight.append(serial)
        return ForwardAction(serial, is_kept=True)

    def _backward(self, most: int) -> list[BackwardAction]:
        """Oldest first, until at most `most` are in flight."""
        return [
            BackwardAction(self._in_flight.popleft()) for _ in range(len(self._in_flight) - most)
        ]
