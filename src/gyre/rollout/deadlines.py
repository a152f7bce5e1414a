"""How long the agent, its step and the whole execution may still take, from the facts so far.

Rule 1: time in which a call was held or a step was judged is not charged to the agent.
Rule 2: time in which no supervisor lived is not charged: a run may be stopped for days.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from gyre.rollout.execution import DeadlineTimes, Execution
from gyre.rollout.spec import ExecutionSpec
from gyre.types.outcomes import Launched, StepStarted
from gyre.types.tasks import TaskStep


class Clock(Protocol):
    """Seconds that only grow, and which start of the machine they count from."""

    @property
    def boot(self) -> str: ...

    def now(self) -> float: ...


class HeldCalls(Protocol):
    """Seconds so far that calls of an execution were held (SPEC 6.1)."""

    @property
    def held_s(self) -> float: ...


class Deadlines:
    """The deadlines of one execution, which move on while its calls are held."""

    def __init__(
        self,
        order: ExecutionSpec,
        execution: Execution,
        steps: Sequence[TaskStep],
        *,
        clock: Clock,
        calls: HeldCalls,
        spent_s: float | None,
    ) -> None:
        """`spent_s` is what earlier supervisors have counted; None where none wrote it down."""
        self._order = order
        self._execution = execution
        self._steps = steps
        self._clock = clock
        self._calls = calls
        self._deadlines = DeadlineTimes(agent_s=order.agent_s, overall_s=order.overall_s)
        self._step_at_most_s = math.inf
        self._held_before_s = 0.0
        self._taken_up: float | None = None
        """When it would have been launched, had there always been a supervisor since; None of one
        that this one launches."""
        if execution.launched is not None:
            known = self._at(execution.launched) if spent_s is None else clock.now() - spent_s
            self._taken_up = clock.now() if known is None else known

    def begin(self) -> None:
        """A step has started: what it may take at most is known."""
        step = self._steps[self._execution.step]
        self._held_before_s = self._calls.held_s
        self._step_at_most_s = math.inf if step.agent_s is None else step.agent_s
        if len(self._steps) > 1:
            # An attempt at a score has its time behind the agent, or half of what is left.
            left_s = self.overall_left_s()
            latest_s = max(left_s - step.evaluation.attempt_s, left_s / 2)
            self._step_at_most_s = min(self._step_at_most_s, latest_s)

    def overall_left_s(self) -> float:
        """Seconds left of the overall budget; a budget whose use is unknown begins anew."""
        self._deadlines.hold(self._calls.held_s)
        return self._deadlines.overall_at(0.0) - self.spent_s()

    def spent_s(self) -> float:
        """Time since launch in which there was a supervisor, calls that were held included."""
        if self._execution.launched is None:
            return 0.0
        launched = self._execution.launched.monotonic_s
        return self._clock.now() - (launched if self._taken_up is None else self._taken_up)

    def agent_left_s(self) -> float:
        """Of what all steps may take together."""
        self._deadlines.hold(self._calls.held_s)
        spent_s = sum(ended.elapsed_s or 0.0 for ended in self._execution.steps)
        if self._execution.is_running:
            spent_s += self.step_s() or 0.0
        return self._deadlines.agent_at(0.0) - spent_s

    def step_left_s(self) -> float:
        """Until the agent has to end, by its own, the step's or the overall deadline."""
        return min(self.agent_left_s(), self._own_left_s())

    def whose_is_over(self) -> str:
        if self.agent_left_s() <= 0:
            return f"the agent's {self._order.agent_s} s are over"
        step = self._steps[self._execution.step]
        return f"the {self._step_at_most_s:.6g} s of step {step.name} are over"

    def step_s(self) -> float | None:
        """Since the step was started; None if the machine has started again since."""
        started = self._at(self._execution.started)
        return None if started is None else self._clock.now() - started

    def whole_s(self) -> float | None:
        """Since launch."""
        launched = self._at(self._execution.launched)
        return None if launched is None else self._clock.now() - launched

    def _own_left_s(self) -> float:
        held_s = max(0.0, self._calls.held_s - self._held_before_s)
        return self._step_at_most_s + held_s - (self.step_s() or 0.0)

    def _at(self, started: Launched | StepStarted | None) -> float | None:
        if started is None or started.boot != self._clock.boot:
            return None
        return started.monotonic_s
