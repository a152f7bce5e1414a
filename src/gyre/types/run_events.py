"""Events that a controller journals beside the scheduler's: for resume, reports and dashboard.

Times that are called `at` are nowhere here: every entry of a journal has its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from gyre.types.training import Measures, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDrawn:
    """A query was drawn for a group."""

    group: int
    position: int
    """Queries drawn before it, which with the seed says which one it is (SPEC 1.1)."""
    task: str
    executions: tuple[str, ...]
    """Their names, by member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardGiven:
    """An execution was closed; comes just before the scheduler's ExecutionClosed."""

    group: int
    member: int
    execution: str
    score: float | None
    """None where it has no valid reward, which is not 0."""
    ran_s: float | None
    """From launch to termination."""
    reason: str | None = None
    """Why it has no reward, where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPacked:
    """A group of the open batch became claims."""

    group: int
    step: int
    num_claims: int
    num_trajectories: int
    num_tokens: int
    num_targets: int
    row_tokens: int
    """What the trajectories one by one would have had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsDamaged:
    """An execution's call log cannot be read: its reward counts, its tokens are not trained."""

    group: int
    execution: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimScored:
    """Forward passes found the ratios of a claim, which its training begins with (SPEC 8.3)."""

    step: int
    """The version that scored it."""
    claim: int
    """Its place in the batch."""
    cell: int
    executions: tuple[str, ...]
    scores: tuple[Score, ...]
    """One for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTrained:
    """A claim is in the sum of a cell."""

    step: int
    claim: int
    """Its place in the batch."""
    cell: int
    num_executions: int
    num_tokens: int
    loss: float
    seconds: float
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMade:
    """An update; comes just before the scheduler's StepTaken."""

    step: int
    """Its number from 0, the version before it."""
    loss: float
    reward: float | None
    """Mean over the valid rewards of its groups; None without any."""
    gradient_norm: float
    is_clipped: bool
    claims: Mapping[int, int]
    """By cell: how many of the claims it did; cells that trained and did none included."""
    reduce_s: float
    step_s: float
    reduced_bytes: int
    """Gradients that were sent to the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplayed:
    """A restarted core took a step again that its checkpoint lacked, with the same groups."""

    step: int
    num_claims: int
    gradient_norm: float
    is_equal: bool
    """Whether the norm is the one it had, to the last bit, as it is in deterministic mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRestarted:
    """A process was started in the place of one that died; its cell recovers once it is well."""

    cell: int
    attempt: int
    """Starts in a row that came to nothing before this one."""
    trainer_version: int | None
    """What its trainer began with; None of a standalone engine."""
    seconds: float
    """Until it took orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlow:
    """An engine's replies take many times what its peers' take; nothing follows from it."""

    engine: int
    token_s: float
    """Seconds for each token of its replies, of late."""
    peers_token_s: float
    """The median of the other engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished:
    """A version is durable and at the engines; comes just before the scheduler's Published."""

    version: int
    digest: str
    save_s: float
    load_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMade:
    """A version of the weights is durable, as a rule with the optimizer's state."""

    version: int
    digest: str
    num_bytes: int
    has_optimizer: bool
    stalled_s: float
    """That training stood still for it."""
    copied_s: float
    """That copying into main memory took, beside the training."""
    seconds: float
    """From the order until it was on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint was not written; the ones before it are as they were, and the next is tried."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRefused:
    """A checkpoint was found damaged, and an older one is used."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionTimed:
    """A cell changed its role, or tried to."""

    cell: int
    transition: int
    into_training: bool
    phases: Mapping[str, float]
    """Seconds by phase, in order."""
    moved: Mapping[str, int] = field(default_factory=dict)
    """Calls that moved because of it, with the bytes and tokens of cache that followed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScored:
    """A held-out evaluation execution was closed (SPEC 6.6)."""

    evaluation: int
    execution: str
    task: str
    version: int
    """Published when it was asked for."""
    versions: tuple[int, ...]
    """Those that sampled its tokens, in ascending order: a publication may come meanwhile."""
    outcome: str
    score: float | None
    """None where it has no valid one, which is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRound:
    """Every held-out task was run once; comes after the last of its scores."""

    version: int
    """Published when the round began."""
    num_tasks: int
    num_valid: int
    mean: float | None
    """Over valid scores; None without any."""
    standard_error: float | None
    """Of the mean, by the spread of the scores; None of fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRelaunched:
    """An execution that could not go on begins anew under another name, still as one of its group.

    Its key was lost before its program ran, or its program was ended with an earlier controller.
    """

    group: int
    member: int
    execution: str
    """The name that it has from now on."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRestarted:
    """The proxy had ended and takes calls again."""

    seconds: float
    """From when its end was noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWaited:
    """The disk did not take the journal; meanwhile nothing was decided and nothing dispatched."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """The accelerators of one cell, as their driver saw them."""

    busy: float
    """Part of the last moments in which they worked, on average over them; from 0 to 1."""
    used_bytes: int
    """Of their memory, by whomever."""
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseMeasured:
    """What the processes of the run used; of what could not be measured nothing is said."""

    seconds: float
    """For so long, until now."""
    cells: Mapping[int, float]
    """Seconds of processors, by cell or standalone engine, with all that it started."""
    executions_s: float
    """The same of supervisors, and of the programs under them."""
    proxy_s: float | None
    controller_s: float
    devices: Mapping[int, DeviceUse] = field(default_factory=dict)
    """By cell or standalone engine."""


TOLD = "told"
"""Why a run ended that `gyre stop` or a signal stopped; it can go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The last entry of a run that was not cut off, unless it goes on later."""

    reason: str


RunEvent = (
    GroupDrawn
    | RewardGiven
    | GroupPacked
    | CallsDamaged
    | ClaimScored
    | ClaimTrained
    | StepMade
    | StepReplayed
    | CellRestarted
    | EngineSlow
    | WeightsPublished
    | CheckpointMade
    | CheckpointFailed
    | CheckpointRefused
    | TransitionTimed
    | EvaluationScored
    | EvaluationRound
    | ExecutionRelaunched
    | ProxyRestarted
    | JournalWaited
    | UseMeasured
    | RunEnded
)
RUN_EVENTS: tuple[type, ...] = get_args(RunEvent)
NEEDED_BY_RESUME: tuple[type, ...] = (
    GroupDrawn,
    RewardGiven,
    CallsDamaged,
    ClaimScored,
    StepMade,
    WeightsPublished,
    EvaluationScored,
    EvaluationRound,
    ExecutionRelaunched,
)
"""Those that a run cannot go on without; all others are for people alone."""
