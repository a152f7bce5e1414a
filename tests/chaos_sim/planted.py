"""Bugs that are planted in the real classes, one at a time; each must be found by the simulation.

A bug is small, as real ones are: a line that was forgotten, a test turned round, a step too early.
"""

import os
from dataclasses import dataclass, replace
from unittest.mock import patch

from tests.chaos_sim.faults import KINDS
from tests.chaos_sim.simulation import simulate

from gyre.batching import group_packer
from gyre.batching.group_buffer import GroupBuffer
from gyre.batching.work_queue import MicroStepQueue
from gyre.cell.client import CellClient
from gyre.controller.cells.checkpointer import Checkpointer
from gyre.controller.cells.transitions import RoleTransitions
from gyre.controller.executions.group_executions import GroupExecutions
from gyre.controller.executions.supervisors import Supervisors
from gyre.controller.routes import RouteTable
from gyre.controller.run_loop import RunLoop
from gyre.controller.training.coordinator import TrainingCoordinator
from gyre.proxy.routing.call_output import CallOutput
from gyre.proxy.routing.router import Router
from gyre.rewards import assessment
from gyre.rollout.supervisor import Supervisor
from gyre.scheduler import policies
from gyre.scheduler.executions import Counters, ExecutionTable
from gyre.scheduler.groups import OutcomeLedger, Staleness
from gyre.scheduler.replay import EVENTS
from gyre.storage.framed_file import FramedFile
from gyre.types.errors import Unavailable
from gyre.types.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One bug, and the invariants by which it may be noticed first."""

    name: str
    breaks: tuple[str, ...]
    where: object
    what: str
    wrong: object
    faults: tuple[str, ...]
    """Those that bring it to light; none: any."""

    def plant(self):
        """A context in which the bug is there."""
        return patch.object(self.where, self.what, self.wrong)

    def simulate(self, seed):
        """The result of a seed with it."""
        kinds = {name: KINDS[name] for name in self.faults or KINDS}
        with self.plant():
            return simulate(seed, kinds)


PLANTED = {}
"""By name."""


def bug(name, *breaks, of, faults=()):
    """Registers the function below it as what stands in place of an attribute of `of`."""

    def plant(wrong):
        where, what = of
        PLANTED[name] = Planted(
            name=name, breaks=breaks, where=where, what=what, wrong=wrong, faults=faults
        )
        return wrong

    return plant


# Counters, room and staleness (I1, I3, I4)


@bug("a crash does not move f", "I1", of=(ExecutionTable, "terminated"))
def _terminated(self, event, real=ExecutionTable.terminated):
    before = self.counters.terminated
    real(self, event)
    if event.ending.value == "crashed":
        self.counters.terminated = before


@bug("a fact is heard as often as it is posted", "I7", of=(Supervisors, "receive"))
async def _heard(self, name, entry, real=Supervisors.receive):
    one = self._all.get(name)
    if one is not None and entry.sequence < one.next_sequence:
        async with one.lock:
            await self._apply(one, entry)
    await real(self, name, entry)


@bug("the waterlevel forgets the queue", "I4", "books", of=(Counters, "waterlevel"))
@property
def _waterlevel(self):
    return self.launched - self.terminated


@bug("staleness counts from after the step", "I3", of=(Staleness, "update"))
def _update(self, *, trainer_version, consumed, real=Staleness.update):
    real(self, trainer_version=trainer_version + 1, consumed=consumed)


@bug("a cell enters whatever the waterlevel", "I4", of=(policies, "may_enter_training"))
def _may_enter_training(*, waterlevel, capacity, leaving):
    return True


@bug("one more is launched than fits", "I4", "I10", of=(policies, "executions_to_launch"))
def _executions_to_launch(*, queued, capacity, occupied):
    return max(0, min(queued, capacity + 1 - occupied))


# Groups and batches (I2)


@bug("the divisor counts one more", "I2", of=(CellClient, "train"))
async def _train(self, claim, *, num_executions, real=CellClient.train, **how):
    return await real(self, claim, num_executions=num_executions + 1, **how)


@bug("a group is pulled twice", "I2", "I10", of=(GroupBuffer, "oldest"))
def _oldest(self, real=GroupBuffer.oldest):
    found = real(self)
    if found is None and self._assigned:
        return next(iter(self._assigned))
    return found


@bug("void groups count as trained", "ledgers", of=(OutcomeLedger, "consume"))
def _consume(self, *, is_void, real=OutcomeLedger.consume):
    real(self, is_void=False)


# Tokens, calls and rewards (I5, I6, I7)


@bug("log-probabilities are laid backwards", "I5", of=(group_packer, "row"))
def _row(tree, drawn, real=group_packer.row):
    found = real(tree, drawn)
    return replace(found, logprobs=found.logprobs[::-1].copy())


@bug(
    "a moved call repeats a log-probability",
    "I5",
    of=(CallOutput, "take"),
    faults=("kill a satellite", "kill an engine"),
)
def _take(self, engine, chunk, real=CallOutput.take):
    has_moved = bool(self._spans) and self._spans[-1].engine != engine
    real(self, engine, chunk)
    if has_moved and chunk.ids:
        self._logprobs[-1] = self._logprobs[0]


@bug(
    "a call ends with its engine",
    "I6",
    of=(Router, "_judge"),
    faults=("kill a satellite", "kill an engine"),
)
def _judge(self, call, room, error, real=Router._judge):
    if call.cut is None:
        message = "the engine failed"
        raise Unavailable(message) from error
    return real(self, call, room, error)


@bug("what is no score counts as 0", "I7", of=(assessment, "score_of"))
def _score_of(said, evaluation, real=assessment.score_of):
    try:
        return real(said, evaluation)
    except ValueError:
        return 0.0


@bug("an excluded execution is given 0", "I7", of=(GroupExecutions, "closed"))
async def _closed(self, one, fact, real=GroupExecutions.closed):
    if fact.outcome is Outcome.EXCLUDED:
        fact = replace(fact, score=0.0)
    await real(self, one, fact)


# Micro-steps and versions (I8, I9)


@bug(
    "what a lost cell has done is not done again",
    "I8",
    "I10",
    of=(MicroStepQueue, "leave"),
    faults=("kill a satellite", "kill the core"),
)
def _leave(self, cell, real=MicroStepQueue.leave):
    done = dict(self._cells[cell].done) if cell in self._cells else {}
    found = real(self, cell)
    for claim in done.values():
        self._waiting.remove((claim, None))
        self._num_done += 1
    return found


@bug("a sum that was sent is kept, and sent again", "I8", "I10", of=(MicroStepQueue, "holds"))
def _holds(self, cell, real=MicroStepQueue.holds):
    found = real(self, cell)
    return frozenset(sorted(found)[1:]) if cell and len(found) > 1 else found


@bug(
    "a replay leaves a group out",
    "I8",
    of=(GroupBuffer, "consumed_by"),
    faults=("kill the core",),
)
def _consumed_by(self, step, *, real=GroupBuffer.consumed_by):
    return real(self, step)[1:]


@bug(
    "a core begins from nothing",
    "I8",
    "I10",
    of=(Checkpointer, "to_begin_from"),
    faults=("kill the core",),
)
async def _to_begin_from(self, most):
    return None


@bug("nobody asks whether an engine took its weights", "I9", of=(RoleTransitions, "_takes"))
async def _takes(self, engine):
    return True


# Progress (I10)


@bug("a cell that leaves waits for itself", "I10", of=(TrainingCoordinator, "leave"))
async def _hall_leave(self, cell, *, parks=False, real=TrainingCoordinator.leave):
    self._busy[cell] += 1
    await real(self, cell, parks=parks)


@bug("routes are told once", "I10", "I6", of=(RouteTable, "work"))
async def _work(self):
    await self._changed.wait()
    changes = {execution: self._wanted.get(execution) for execution in self._unsent}
    self._version += 1
    await self._proxy.assign(self._version, changes)
    self._sent.update(changes)
    self._flushed.set()


@bug(
    "nobody revives a supervisor", "I10", of=(Supervisors, "_revive"), faults=("kill a supervisor",)
)
async def _revive(self, one):
    return None


# The journal and what resumes from it (SPEC 10)


@bug(
    "orders come before their cause is durable",
    "SPEC 10",
    "I1",
    "books",
    "I10",
    of=(RunLoop, "_take"),
    faults=("kill the controller at the journal",),
)
async def _host_take(self):
    now = self.now
    facts = list(self._inbox)
    self._inbox.clear()
    for fact in facts:
        if isinstance(fact, EVENTS):
            self._decide(fact, now)
        for listener in self._listeners:
            listener(now, fact)
    for fact in facts:
        self._journal.append(fact, now=now)
    await self._commit()


@bug(
    "a torn tail is written behind",
    "SPEC 10",
    "I10",
    of=(FramedFile, "__init__"),
    faults=("kill the controller at the journal",),
)
def _framed_file(self, path, *, magic, sound_bytes=0, real=FramedFile.__init__):
    torn = path.stat().st_size if sound_bytes and path.exists() else 0
    real(self, path, magic=magic, sound_bytes=sound_bytes)
    if torn > sound_bytes:
        os.ftruncate(self._fd, torn)
        self.size_bytes = torn


@bug(
    "a live execution is launched again",
    "SPEC 10",
    "I6",
    "I1",
    of=(Supervisors, "adopt"),
    faults=("kill the controller",),
)
def _adopt(self, name, task, folder, **known):
    self.launch(name, task, folder)


@bug(
    "a dead supervisor's agent is started again",
    "SPEC 10",
    of=(Supervisor, "advance"),
    faults=("kill a supervisor",),
)
async def _advance(self, mark, command, real=Supervisor.advance):
    if self._execution.is_running:
        step = self._steps[self._execution.step]
        await self._run(step, command(step))
    else:
        await real(self, mark, command)
