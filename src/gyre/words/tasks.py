"""What is asked of an agent, where it reaches the model, and how its work is judged."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The rule by which the state an execution leaves is assessed: a command with a score."""

    argv: tuple[str, ...]
    """Run in a fresh copy of the workspace."""
    score: Literal["reward.json", "reward.txt", "exit-status"] = "reward.json"
    """Where the score stands: in a file that the command writes, or 0 for 1 and 1 for 0."""
    files: str | None = None
    """Folder that the command gets and the agent does not."""
    attempt_s: float = 600.0
    """How long one attempt may take."""
    attempts: int = 3
    """Most attempts, within the overall deadline of the execution."""
    retry_s: float = 1.0
    """Pause before the second attempt; it doubles with each further one."""
    lowest: float = 0.0
    highest: float = 1.0
    """What lies outside is no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked, with its files; drawn for training it is a query."""

    id: str
    """Stable: the same task has it whenever its source is opened."""
    instruction: str
    files: str | None
    """Folder whose contents the workspace begins with; None: an empty workspace."""
    evaluation: Evaluation
    variables: dict[str, str] = field(default_factory=dict)
    """Environment of the agent and of the evaluation."""
    metadata: dict[str, str] = field(default_factory=dict)
    """For people and reports; nothing is decided by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one execution reaches the model, and with which secret (SPEC 4.7)."""

    url: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run."""

    argv: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Its environment, besides what the sandbox gives everybody; keys may be among them."""
