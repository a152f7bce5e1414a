"""Task, evaluation rule, resource needs, sandbox spec."""

from dataclasses import dataclass, field
from typing import Literal

Level = Literal[
    "files",
    "processes",
    "network",
    "privileges",
    "seccomp",
    "memory",
    "memory-cgroup",
    "pids",
    "pids-cgroup",
    "cpus-cgroup",
    "disk",
]
"""One thing that is in force: what a program cannot see or reach, or cannot have more of.

`memory`, `pids` and `disk` are bounded by a watchdog that kills; `-cgroup` by the kernel.
"""
Keep = Literal["all", "scored", "unscored", "none"]
"""Whose frozen states stay on the disk when their executions are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that all programs of one execution have together; None: no bound."""

    memory_bytes: int | None = None
    processes: int | None = None
    """Threads count too."""
    cpus: float | None = None
    """Cores; in force where there are control groups."""
    disk_bytes: int | None = None
    """What they write: workspace, home and temporary files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The sandbox that an execution runs in."""

    kind: Literal["process", "local", "docker"] = "process"
    root: str | None = None
    """Folder that programs see as their root; None: the system folders of this machine."""
    readable: tuple[str, ...] = ()
    """Folders and files of this machine that programs read under the same paths."""
    image: str | None = None
    """Container image, where a task names none."""
    runtime: str | None = None
    """What a container daemon runs containers with; None: its default."""
    socket: str | None = None
    """Where a container daemon listens; None: where Docker does."""
    limits: Limits = field(default_factory=Limits)
    """At most; a task may name less."""
    require: tuple[Level, ...] = ()
    """What must be in force, or nothing is launched."""
    keep: Keep = "all"


Score = Literal["reward.json", "reward.txt", "reward", "junit.xml", "tests.json", "exit-status"]
"""Files that a command may leave its score in, or what it ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTests:
    """Which tests of a report count, and what their number is divided by."""

    count: int | None = None
    """How many there are, also where the report holds others; not set where they are named."""
    fail_to_pass: tuple[str, ...] = ()
    """The score is the part of these that passes."""
    pass_to_pass: tuple[str, ...] = ()
    """Unless all of these pass, the score is the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """What a judge looks for in the workspace."""

    text: str
    shows: tuple[str, ...] = ("**/*",)
    """Patterns of the files it is shown; `**` leads into folders."""
    looks: bool = False
    """Whether it lists and reads files by itself instead, call by call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRule:
    """The rule by which the state an execution leaves is assessed: by a command, or by a judge."""

    argv: tuple[str, ...] = ()
    """Run in a fresh copy of the workspace; not set where a judge has a rubric."""
    rubric: Rubric | None = None
    """For a judge; then no command is run."""
    score: Score = "reward.json"
    """Where the score stands: in a file that the command writes, or 0 for 1 and 1 for 0.
    `reward` is reward.json, or reward.txt where that is missing."""
    reward_key: str = "reward"
    """Which number of a reward.json with several is the score."""
    gate: str | None = None
    """Another number there; unless it is the highest, the score is the lowest."""
    baseline: float | None = None
    """What doing nothing scores; it becomes the lowest, and what is above is stretched."""
    sentinels: tuple[float, ...] = (-1.0,)
    """Numbers by which an evaluator says that it could not tell."""
    evidence: tuple[str, ...] = ()
    """Files that must lie beside the score and hold something, or it is none."""
    tests: CountedTests | None = None
    """What counts in junit.xml and tests.json."""
    files: str | None = None
    """Folder that the command gets and the agent does not."""
    files_over: str | None = None
    """Folder whose contents are put over those."""
    files_at: str | None = None
    """Where scripts that know no variables look for those files, in a root of their own."""
    results_at: str | None = None
    """Where such scripts leave their score."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment of the command besides the task's."""
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
class ResourceNeeds:
    """What a task wants of the place it runs in; None: what the place gives."""

    image: str | None = None
    """Container image that it runs in."""
    build: str | None = None
    """Folder with a Dockerfile that such an image is built from."""
    build_s: float = 600.0
    """How long building may take."""
    workdir: str | None = None
    """Where its workspace stands inside, if it matters."""
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    portable: bool = True
    """Whether it also runs with neither image nor root of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStep:
    """One of several instructions that an agent gets in turn, each judged when it has ended."""

    name: str
    instruction: str
    files: str | None
    """Folder whose contents are put into the workspace before it begins."""
    evaluation: EvaluationRule
    agent_s: float | None = None
    least: dict[str, float] = field(default_factory=dict)
    """Numbers that the step must reach by name; else the steps behind it are left out."""
    solution: str | None = None
    """Folder with a `solve.sh` that does the step; no agent sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked, with its files; drawn for training it is a query."""

    id: str
    """Stable: the same task has it whenever its source is opened."""
    instruction: str
    files: str | None
    """Folder whose contents the workspace begins with; None: an empty workspace."""
    evaluation: EvaluationRule
    variables: dict[str, str] = field(default_factory=dict)
    """Environment of the agent and of the evaluation."""
    metadata: dict[str, str] = field(default_factory=dict)
    """For people and reports; nothing is decided by it."""
    needs: ResourceNeeds = ResourceNeeds()
    agent_s: float | None = None
    """How long the agent may take, where the run allows more."""
    overall_s: float | None = None
    """How long agent and evaluation may take together, where the run allows more."""
    preserve: bool = False
    """Whether what is left stays on disk, also where the run removes that of others."""
    steps: tuple[TaskStep, ...] = ()
    """Of a task with several; `evaluation` is then the last step's."""
    steps_reward: Literal["mean", "final"] = "mean"
    """What the rewards of several steps come to."""
    solution: str | None = None
    """Folder with a `solve.sh` that solves it; no agent sees it."""


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
    """Its environment, besides what the sandbox gives all programs; keys may be among them."""
    home: dict[str, str] = field(default_factory=dict, repr=False)
    """Files that it finds in its home, by their paths there; keys may be among them."""
    layers: tuple[str, ...] = ()
    """Folders of this machine that it reads and does not change, under the same paths."""
