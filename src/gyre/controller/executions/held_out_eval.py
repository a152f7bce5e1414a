"""Held-out evaluation: every so many publications all held-out tasks run once (SPEC 6.6).

Rule 1: rounds do not overlap; one that is due while another is open begins when that has closed.
Rule 2: numbers never repeat, and nothing here enters a buffer.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gyre.controller.executions.supervisors import SupervisedExecution, Supervisors
from gyre.controller.routes import ChangeTrackingDict
from gyre.controller.run_loop import RunLoop
from gyre.scheduler.messages import (
    EvaluationEnded,
    EvaluationId,
    EvaluationMove,
    EvaluationRequested,
    LaunchEvaluation,
    Published,
    RunStarted,
    TimerFired,
)
from gyre.trajectory.loading import versions_of
from gyre.types.ids import EngineId, ExecutionId, evaluation_name
from gyre.types.outcomes import Closed, Outcome, Terminated
from gyre.types.places import TaskSource
from gyre.types.run_events import EvaluationRound, EvaluationScored
from gyre.types.tasks import Task


@dataclass(slots=True)
class _Round:
    """All held-out tasks, once."""

    version: int
    first: int
    """Number of its first evaluation; the others follow in the order of their tasks."""
    open: set[EvaluationId]
    scores: list[float] = field(default_factory=list)


class HeldOutEval:
    """Runs the held-out tasks of a run and records their scores, round by round."""

    def __init__(
        self,
        loop: RunLoop,
        folder: Path,
        tasks: TaskSource,
        supervisors: Supervisors,
        *,
        every: int,
        last: int | None,
    ) -> None:
        """`last` is the version that the run ends with, which nothing can be launched under."""
        self.supervisors = supervisors
        self.assignments = ChangeTrackingDict[ExecutionId, EngineId]()
        """Engines of those that are launched and not terminated."""
        self._loop = loop
        self._folder = folder
        # Read at once, so that a bad task is known before the run starts.
        self._tasks = [tasks.get(index) for index in range(len(tasks))]
        self._every = every
        self._last = last
        self._names: dict[EvaluationId, ExecutionId] = {}
        """Of those that are launched and not closed."""
        self._round: _Round | None = None
        self._is_due = False
        self._next = 0
        self._published = 0
        self._publications = 0

    def noticed(self, now: float, fact: Any) -> None:
        """A fact is in the journal; the run's start and publications may begin a round."""
        if self._notices(fact):
            self._is_due = True
            self._begin()

    def launch(self, command: LaunchEvaluation) -> None:
        number = command.evaluation
        self._launch(number, name_of(number), command.engine)

    def move(self, moves: Sequence[EvaluationMove]) -> None:
        """One that has ended since has no calls to be moved."""
        for move in moves:
            name = self._names.get(move.evaluation)
            if name is not None and name in self.assignments:
                self.assignments[name] = move.engine

    def recall(self, history: Iterable[Any]) -> None:
        """Goes on from the facts and orders of an earlier controller; what runs, runs on."""
        launched: dict[EvaluationId, EngineId] = {}
        ended: set[EvaluationId] = set()
        asked: set[EvaluationId] = set()
        for fact in history:
            self._is_due = self._notices(fact) or self._is_due
            match fact:
                case EvaluationRequested(evaluation=number):
                    asked.add(number)
                    if self._round is None:
                        self._is_due = False
                        self._open(number)
                case LaunchEvaluation() | EvaluationMove():
                    launched[fact.evaluation] = fact.engine
                case EvaluationEnded(evaluation=number):
                    ended.add(number)
                case EvaluationScored(evaluation=number, score=score):
                    self._count(EvaluationId(number), score)
                case EvaluationRound():
                    self._round = None
                case _:
                    pass
        self._go_on(asked, launched, ended)

    def _go_on(
        self,
        asked: Collection[EvaluationId],
        launched: Mapping[EvaluationId, EngineId],
        ended: Collection[EvaluationId],
    ) -> None:
        if self._round is None:
            self._begin()
            return
        for number in sorted(self._round.open):
            if number not in asked:
                self._loop.record(EvaluationRequested(evaluation=number))
            elif number in launched:
                name = self._newest(number)
                self._names[number] = name
                if number not in ended:
                    self.assignments[name] = launched[number]
                self.supervisors.adopt(
                    name,
                    self._task(number),
                    self._place(name),
                    self,
                    is_terminated=number in ended,
                )
        self._close_round()

    def _notices(self, fact: Any) -> bool:
        """Whether a round is due because of it."""
        match fact:
            case RunStarted():
                return True
            case Published(version=version) if version > self._published:
                self._published = version
                self._publications += 1
                return version != self._last and self._publications % self._every == 0
            case _:
                return False

    def _begin(self) -> None:
        if not self._is_due or self._round is not None or not self._tasks:
            return
        self._is_due = False
        for number in self._open(self._next):
            self._loop.record(EvaluationRequested(evaluation=number))

    def _open(self, first: int) -> list[EvaluationId]:
        """The numbers of a new round."""
        self._next = first + len(self._tasks)
        numbers = [EvaluationId(number) for number in range(first, self._next)]
        self._round = _Round(version=self._published, first=first, open=set(numbers))
        return numbers

    def _count(self, number: EvaluationId, score: float | None) -> None:
        assert self._round is not None
        self._round.open.discard(number)
        self._round.scores += [] if score is None else [score]

    def _close_round(self) -> None:
        """If nothing of it is open."""
        if self._round is not None and not self._round.open:
            self._loop.record(_summed(self._round, len(self._tasks)))
            self._round = None
            self._begin()

    def _task(self, number: EvaluationId) -> Task:
        assert self._round is not None
        return self._tasks[number - self._round.first]

    def _place(self, name: ExecutionId) -> Path:
        return self._folder / "attempts" / name

    def _launch(self, number: EvaluationId, name: ExecutionId, engine: EngineId) -> None:
        self._names[number], self.assignments[name] = name, engine
        self.supervisors.launch(name, self._task(number), self._place(name), self)

    def _newest(self, number: EvaluationId) -> ExecutionId:
        """The name under which it was begun last."""
        name = name_of(number)
        while self._place(next_name(name)).is_dir():
            name = next_name(name)
        return name

    # As supervisors report

    def lost(self, execution: SupervisedExecution, reason: str) -> None:
        """The same again, under a name that has neither a log nor a folder, on the same engine."""
        engine = self.assignments.pop(execution.name)
        self._launch(number_of(execution.name), next_name(execution.name), engine)
        # No event follows from it, and its calls need a route under the new name.
        self._loop.record(TimerFired())

    async def terminated(self, execution: SupervisedExecution, fact: Terminated) -> None:
        """Its slot is free, because judging needs no engine (SPEC 1.3)."""
        del self.assignments[execution.name]
        self._loop.record(EvaluationEnded(evaluation=number_of(execution.name)))

    async def closed(self, execution: SupervisedExecution, fact: Closed) -> None:
        versions = await asyncio.to_thread(versions_of, self._folder, execution.name)
        number = number_of(execution.name)
        del self._names[number]
        self.supervisors.forget(execution.name)
        assert self._round is not None
        score, version = _score(fact), self._round.version
        self._count(number, score)
        self._loop.record(
            EvaluationScored(
                evaluation=number,
                execution=execution.name,
                task=execution.task.id,
                version=version,
                versions=versions,
                outcome=fact.outcome.value,
                score=score,
            )
        )
        self._close_round()


def name_of(number: EvaluationId) -> ExecutionId:
    return evaluation_name(number)


def number_of(name: ExecutionId) -> EvaluationId:
    """Of an evaluation by any of its names."""
    return EvaluationId(int(name.rpartition("-")[2].partition(".")[0]))


def next_name(name: ExecutionId) -> ExecutionId:
    """Of an evaluation that begins anew: eval-000001, eval-000001.1, eval-000001.2..."""
    first, _, number = name.partition(".")
    return ExecutionId(f"{first}.{int(number or 0) + 1}")


def _score(closed: Closed) -> float | None:
    """A placeholder is a valid 0 here too (SPEC 6.4)."""
    return 0.0 if closed.outcome is Outcome.PLACEHOLDER else closed.score


def _summed(one: _Round, num_tasks: int) -> EvaluationRound:
    scores = one.scores
    return EvaluationRound(
        version=one.version,
        num_tasks=num_tasks,
        num_valid=len(scores),
        mean=fmean(scores) if scores else None,
        standard_error=stdev(scores) / sqrt(len(scores)) if len(scores) > 1 else None,
    )
