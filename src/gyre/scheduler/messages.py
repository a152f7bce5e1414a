"""Events that the scheduler takes (past tense) and commands that it returns (imperative)."""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from gyre.types.ids import CellId, EngineId, GroupId
from gyre.types.outcomes import Ending, Outcome

EvaluationId = NewType("EvaluationId", int)
"""A held-out evaluation execution, numbered by the host."""


class LeaveReason(Enum):
    """Why a cell goes home, which decides what its engine serves when it is there."""

    AFTER_BURST = "after-burst"
    """A satellite at the end of a burst: it takes no calls before the weights are published."""
    AFTER_PUBLICATION = "after-publication"
    """The core: it loads its own new weights and serves."""
    RESCUE = "rescue"
    """No engine serves: it loads the weights last published; a satellite's unreduced micro-steps
    return to the queue, the core parks its gradient (SPEC 2.5)."""


class StopReason(Enum):
    """Why the run is over."""

    FINISHED = "finished"
    CORE_FAILED = "core-failed"
    TOO_MANY_VOID = "too-many-void"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running execution's calls go to another engine from now on."""

    group: GroupId
    member: int
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMove:
    """A running evaluation's calls go to another engine from now on."""

    evaluation: EvaluationId
    engine: EngineId


# Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitGroup:
    """Draw the next query for this group; answered by GroupAdmitted."""

    group: GroupId
    version: int
    """v_d: the version last published."""
    size: int
    """Executions of the group, surplus included; its members are 0 to size - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchExecution:
    """Start sandbox and harness, with calls routed to the engine; answered by
    ExecutionTerminated."""

    group: GroupId
    member: int
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelExecution:
    """End a surplus execution unassessed; its ExecutionTerminated (unless it came already) and
    ExecutionClosed are the answer."""

    group: GroupId
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEvaluation:
    """Start a held-out evaluation execution; answered by EvaluationEnded."""

    evaluation: EvaluationId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveExecutions:
    """Route executions whose engine was lost to engines with free slots; needs no answer."""

    moves: tuple[Move, ...]
    evaluations: tuple[EvaluationMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferGroup:
    """Put a ready group before the packing buffer; answered by GroupAssigned."""

    group: GroupId
    version: int
    """v_d; the oldest is pulled first."""
    members: tuple[int, ...]
    """Those whose rewards count: valid ones and placeholders."""
    is_void: bool
    """Too few of them: consumed with all advantages 0 (SPEC 6.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterTraining:
    """Take a cell into training; answered by CellTraining or TransitionFailed."""

    cell: CellId
    transition: int
    """Names this transition; answers repeat it, and an outdated answer is ignored."""
    moves: tuple[Move, ...]
    """New routes of what its engine serves, reserved already; in the order of SPEC 2.3."""
    evaluations: tuple[EvaluationMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveTraining:
    """Take a cell home, from training or from its way there; answered by CellServing or
    TransitionFailed."""

    cell: CellId
    transition: int
    reason: LeaveReason


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """Let the packing buffer pull B groups for this step; answered by StepTaken."""

    step: int
    """Counted from 0; equals the trainer's version before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Send the core's weights to these engines; answered by Published."""

    version: int
    engines: tuple[EngineId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeights:
    """Bring a fenced engine to this version, trying until it can; answered by EngineReturned."""

    engine: EngineId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCell:
    """Start a dead cell's processes again; answered by CellRecovered."""

    cell: CellId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """End the run; the scheduler handles no event after this command."""

    reason: StopReason


Command = (
    AdmitGroup
    | LaunchExecution
    | CancelExecution
    | LaunchEvaluation
    | MoveExecutions
    | OfferGroup
    | EnterTraining
    | LeaveTraining
    | OpenBatch
    | Publish
    | LoadWeights
    | RestartCell
    | StopRun
)

# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Every process is up, engines serve version 0; comes once, before anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdmitted:
    """A query was drawn for the group, which may launch from now on."""

    group: GroupId
    estimate_s: float | None = None
    """How long its executions may take, where an estimate exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTerminated:
    """A harness has ended, in whichever way; moves f."""

    group: GroupId
    member: int
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionClosed:
    """A terminated execution has its outcome."""

    group: GroupId
    member: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssigned:
    """The packing buffer pulled an offered group into the open batch."""

    group: GroupId
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTraining:
    """A cell has pulled the weights and registered."""

    cell: CellId
    transition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellServing:
    """A cell is home, its engine up (with what the reason of its leaving asks for)."""

    cell: CellId
    transition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionFailed:
    """A cell is back where the transition found it: home if it was to enter, training if to
    leave."""

    cell: CellId
    transition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """The update of this step is committed; it is never taken back."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The checkpoint is durable and the engines asked acknowledge the version, silent ones aside
    (SPEC 2.4)."""

    version: int
    silent: tuple[EngineId, ...] = ()
    """Engines that did not answer within publish_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """A serving engine stopped answering; its cell's trainer, if it has one, is well."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReturned:
    """A fenced engine serves again, its weights verified to be of this version."""

    engine: EngineId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDied:
    """All that a cell held is gone; the core's weights and optimizer are restored with it."""

    cell: CellId


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecovered:
    """A cell is up again and at home, its engine's weights verified to be of this version."""

    cell: CellId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequested:
    """A held-out evaluation execution wants to run."""

    evaluation: EvaluationId


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEnded:
    """A held-out evaluation execution has ended."""

    evaluation: EvaluationId


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsReported:
    """How many model calls an engine has in flight, for shapes that overcommit."""

    engine: EngineId
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The time that `wake_at` named has come."""


Event = (
    RunStarted
    | GroupAdmitted
    | ExecutionTerminated
    | ExecutionClosed
    | GroupAssigned
    | CellTraining
    | CellServing
    | TransitionFailed
    | StepTaken
    | Published
    | EngineLost
    | EngineReturned
    | CellDied
    | CellRecovered
    | EvaluationRequested
    | EvaluationEnded
    | CallsReported
    | TimerFired
)
