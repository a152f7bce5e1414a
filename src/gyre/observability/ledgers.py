"""The two ledgers of a journal, counted from its facts alone: groups and executions (SPEC 10).

Rule 1: nothing is asked of a scheduler, so that its own books can be held against these.
Rule 2: a fact that comes twice, as after a resume, counts once; one that says otherwise is a fault.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from gyre.journal.journal import JournalContents
from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.groups import COUNTED
from gyre.scheduler.messages import ExecutionClosed, GroupAdmitted, GroupAssigned, StepTaken
from gyre.scheduler.replay import shape_of
from gyre.types.outcomes import Outcome
from gyre.types.run_events import RewardGiven

Member = tuple[int, int]
"""Group and place in it."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLedger:
    """What became of every group."""

    admitted: int
    trained: int
    void: int
    outstanding: int

    @property
    def is_balanced(self) -> bool:
        return self.admitted == self.trained + self.void + self.outstanding


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLedger:
    """What became of every execution of a group."""

    dispatched: int
    valid: int
    excluded: int
    placeholder: int
    surplus: int
    open: int

    @property
    def is_balanced(self) -> bool:
        closed = self.valid + self.excluded + self.placeholder + self.surplus
        return self.dispatched == closed + self.open


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedgers:
    """Both ledgers, and every fact that contradicts them."""

    groups: GroupLedger
    executions: ExecutionLedger
    faults: tuple[str, ...]

    @property
    def balance(self) -> bool:
        return self.groups.is_balanced and self.executions.is_balanced and not self.faults


def ledgers(reading: JournalContents) -> RunLedgers | None:
    """Of everything up to the journal's last entry; None of a journal without a header."""
    if reading.header is None:
        return None
    return ledgers_of(shape_of(reading.header.shape), (entry.event for entry in reading.entries))


def ledgers_of(shape: SchedulerConfig, facts: Iterable[object]) -> RunLedgers:
    """Of facts in the order in which they were written."""
    count = _Count(shape)
    for fact in facts:
        count.take(fact)
    return count.ledgers()


class _Count:
    """Facts so far, each kept once."""

    def __init__(self, shape: SchedulerConfig) -> None:
        self._shape = shape
        self._admitted: set[int] = set()
        self._outcomes: dict[Member, Outcome] = {}
        self._scores: dict[Member, float | None] = {}
        self._batches: dict[int, list[int]] = {}
        """Groups by the step that they were assigned to."""
        self._step_of: dict[int, int] = {}
        self._taken: set[int] = set()
        self._faults: list[str] = []

    def take(self, fact: object) -> None:
        match fact:
            case GroupAdmitted(group=group):
                self._admitted.add(group)
            case RewardGiven(group=group, member=member, score=score):
                self._once(self._scores, (group, member), score, "reward")
            case ExecutionClosed(group=group, member=member, outcome=outcome):
                self._closed((group, member), outcome)
            case GroupAssigned(group=group, step=step):
                self._assigned(group, step)
            case StepTaken(step=step):
                self._stepped(step)
            case _:
                pass

    def ledgers(self) -> RunLedgers:
        consumed = {group for step in self._taken for group in self._batches.get(step, ())}
        void = sum(self._is_void(group) for group in consumed)
        size = self._shape.group_size
        by_outcome = Counter(self._outcomes.values())
        members = {(group, member) for group in self._admitted for member in range(size)}
        return RunLedgers(
            groups=GroupLedger(
                admitted=len(self._admitted),
                trained=len(consumed) - void,
                void=void,
                outstanding=len(self._admitted - consumed),
            ),
            executions=ExecutionLedger(
                dispatched=len(self._admitted) * size,
                valid=by_outcome[Outcome.VALID],
                excluded=by_outcome[Outcome.EXCLUDED],
                placeholder=by_outcome[Outcome.PLACEHOLDER],
                surplus=by_outcome[Outcome.SURPLUS],
                open=len(members - self._outcomes.keys()),
            ),
            faults=tuple(self._faults),
        )

    def _closed(self, which: Member, outcome: Outcome) -> None:
        group, member = which
        if group not in self._admitted or member not in range(self._shape.group_size):
            self._faults.append(f"execution {member} of group {group} closed, and was never there")
        self._once(self._outcomes, which, outcome, "outcome")
        score = self._scores.get(which)
        if which in self._scores and (score is not None) != (outcome is Outcome.VALID):
            reward = "no reward" if score is None else f"reward {score:g}"
            self._faults.append(
                f"execution {member} of group {group} closed as {outcome.value} with {reward}"
            )

    def _assigned(self, group: int, step: int) -> None:
        if self._step_of.get(group, step) != step:
            first = self._step_of[group]
            self._faults.append(f"group {group} went into step {first} and into step {step}")
        elif group not in self._step_of:
            self._step_of[group] = step
            self._batches.setdefault(step, []).append(group)
            size = self._shape.group_size
            if missing := sum((group, member) not in self._outcomes for member in range(size)):
                self._faults.append(f"group {group} went into step {step} with {missing} open")

    def _stepped(self, step: int) -> None:
        wanted = self._shape.groups_per_batch
        if step in self._taken:
            return
        if step != len(self._taken):
            self._faults.append(f"step {step} was taken after {len(self._taken)} steps")
        if wanted != (found := len(self._batches.get(step, ()))):
            self._faults.append(f"step {step} had {found} groups, not {wanted}")
        self._taken.add(step)

    def _is_void(self, group: int) -> bool:
        counted = sum(
            self._outcomes.get((group, member)) in COUNTED
            for member in range(self._shape.group_size)
        )
        return counted < self._shape.min_valid

    def _once(self, kept: dict[Member, Value], which: Member, value: Value, what: str) -> None:
        if kept.setdefault(which, value) != value:
            group, member = which
            self._faults.append(
                f"{what} of execution {member} of group {group} was {kept[which]} and is {value}"
            )
