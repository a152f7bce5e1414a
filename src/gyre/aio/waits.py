"""Time in which somebody waited, counted once however many waited at the same time."""


class WaitTimer:
    """Seconds in which at least one waited; whoever asks says what time it is."""

    def __init__(self) -> None:
        self._num_waiting = 0
        self._since = 0.0
        self._before_s = 0.0

    def begin(self, now: float) -> None:
        """One more waits."""
        if self._num_waiting == 0:
            self._since = now
        self._num_waiting += 1

    def end(self, now: float) -> None:
        """One of them waits no longer."""
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._before_s += now - self._since

    def total_s(self, now: float) -> float:
        """Until now, those who wait still included."""
        return self._before_s + (now - self._since if self._num_waiting else 0.0)
