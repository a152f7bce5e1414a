"""How an execution ends, how its workspace is assessed, and the facts of both (SPEC 6)."""

from dataclasses import dataclass
from enum import Enum

from gyre.types.errors import InternalError
from gyre.types.ids import ExecutionId
from gyre.types.tasks import Level


class Ending(Enum):
    """How an execution's harness came to its end (SPEC 6.1)."""

    COMPLETED = "completed"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    NEVER_STARTED = "never-started"


class Outcome(Enum):
    """What a terminated execution closed as (SPEC 6.2, 6.5)."""

    VALID = "valid"
    PLACEHOLDER = "placeholder"
    EXCLUDED = "excluded"
    SURPLUS = "surplus"


class Status(Enum):
    """Whether an assessment says anything about the state it refers to."""

    VALID = "valid"
    UNRESOLVED = "unresolved"
    """The evaluator ran and gave no score."""
    FAILED = "failed"
    """The evaluator did not get to a score: it could not start, or it broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an execution left behind, frozen by its supervisor."""

    folder: str
    """Within the folder of its execution."""
    reference: str
    """Hash of its contents, by which assessments name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorAnswer:
    """An evaluator's answer, before `rewards` has checked whether it is a score."""

    text: str
    evidence: tuple[str, ...] = ()
    """Of the files that must lie beside it, those that do and hold something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """An evaluator that ran and answered nothing."""

    reason: str


Finding = EvaluatorAnswer | NoAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One evaluator's judgement of one state (SPEC 6.2)."""

    status: Status
    score: float | None
    """Of a valid one; every other has none, which is not 0."""
    reason: str | None
    """Why it is not valid."""
    reference: str
    """Hash of the state that was judged."""
    evaluator: str
    attempt: int
    """Counted from 1."""
    may_retry: bool = True
    """Whether another attempt could end otherwise."""

    def __post_init__(self) -> None:
        if (self.status is Status.VALID) != (self.score is not None):
            raise InternalError(f"a {self.status.value} assessment with the score {self.score}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The workspace is there."""

    mark: str
    """Secret word in the environment of all its processes, by which they are found again."""
    levels: tuple[Level, ...] = ()
    """What holds its programs back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The harness is about to start; moves p, and deadlines count from here."""

    monotonic_s: float
    boot: str
    """Which start of the machine that clock belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The agent is about to start on a further step; the first one starts with the launch."""

    step: int
    """Counted from 0."""
    monotonic_s: float
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """The agent has ended on a step that another may follow, and nothing of it runs."""

    step: int
    ending: Ending
    reason: str
    elapsed_s: float | None
    """Since the step was started; None where it did not happen in one start of the machine."""
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAssessed:
    """An attempt at an assessment of such a step has ended."""

    step: int
    assessment: Assessment
    is_enough: bool
    """Whether the step reached what the next one waits for, if it has a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """The harness has ended and nothing of it runs; moves f."""

    ending: Ending
    reason: str
    elapsed_s: float | None
    """Since launch; None where it did not happen in one start of the machine, or at all."""
    state: State | None
    """None: there is nothing to assess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """An attempt at an assessment has ended."""

    assessment: Assessment


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The execution has its outcome."""

    outcome: Outcome
    score: float | None
    """The reward of a valid one."""
    reason: str | None
    """Why it has no valid one."""


Fact = Prepared | Launched | StepStarted | StepEnded | StepAssessed | Terminated | Assessed | Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """What became of an execution, as its outcome file says: terminated, and perhaps closed."""

    execution: ExecutionId
    task: str
    was_launched: bool
    """If not, p and f move in one event (SPEC 1.2)."""
    terminated: Terminated
    assessments: tuple[Assessment, ...]
    closed: Closed | None
    format: int = 1
