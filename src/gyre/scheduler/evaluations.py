"""Held-out evaluation executions: outside d, p and f, inside the waterlevel while they run."""

from gyre.scheduler.messages import EvaluationId


class EvaluationQueue:
    """Those that wait for a slot, in the order of request, and those that run (SPEC 6.6)."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: dict[EvaluationId, None] = {}
        self._running: set[EvaluationId] = set()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def may_start(self) -> bool:
        return bool(self._waiting) and len(self._running) < self._slots

    def request(self, evaluation: EvaluationId) -> None:
        if evaluation not in self._running:
            self._waiting[evaluation] = None

    def start(self) -> EvaluationId:
        evaluation = next(iter(self._waiting))
        del self._waiting[evaluation]
        self._running.add(evaluation)
        return evaluation

    def end(self, evaluation: EvaluationId) -> bool:
        """Whether it ran; one that still waits is dropped."""
        self._waiting.pop(evaluation, None)
        if evaluation not in self._running:
            return False
        self._running.remove(evaluation)
        return True
