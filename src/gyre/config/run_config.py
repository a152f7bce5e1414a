"""RunConfig and its sections; task-source configs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gyre.config.sections import (
    SERVERS,
    Batches,
    Count,
    CountOrNone,
    EngineConfig,
    Factor,
    Fraction,
    JudgeConfig,
    LimitsConfig,
    LossConfig,
    NotNegative,
    OptimizerConfig,
    Positive,
    ProxyConfig,
    RouterConfig,
    Seconds,
    ServerConfig,
    Several,
    Share,
    Text,
    TrainerConfig,
    TransportConfig,
    Words,
)
from gyre.types.sampling import SamplingParams
from gyre.types.tasks import Keep, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTasksConfig:
    """Tasks in a folder, each a folder with its files."""

    kind: Literal["folder"]
    """One folder per task."""
    path: Text
    """The folder they are in, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlTasksConfig:
    """Tasks in a file, each a line of JSON."""

    kind: Literal["jsonl"]
    """One line per task."""
    path: Text
    """The file, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTasksConfig:
    """Tasks in Harbor's format."""

    kind: Literal["harbor"]
    """Folders with a task.toml, or a dataset.toml that names them."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSweTasksConfig:
    """Tasks of DeepSWE."""

    kind: Literal["deepswe"]
    """Harbor's format, with scores by fail-to-pass and pass-to-pass."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nl2RepoTasksConfig:
    """Tasks of NL2RepoBench."""

    kind: Literal["nl2repo"]
    """Folders with a start.md, and a fixed number of tests for each."""
    path: Text
    """The folder they are in, or an archive of it, seen from where the command runs."""
    tests: Text
    """Folder with a folder of tests for each task, copied from its image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTasksConfig:
    """Tasks that a function makes."""

    kind: Literal["python"]
    """A function of one's own."""
    source: Text
    """MODULE:FUNCTION?key=value or FILE.py:FUNCTION; it gives tasks, the same in every process."""


TasksConfig = (
    FolderTasksConfig
    | JsonlTasksConfig
    | HarborTasksConfig
    | DeepSweTasksConfig
    | Nl2RepoTasksConfig
    | PythonTasksConfig
)


EXTRA_DISPATCH = 0.5
"""phi of a schedule that names neither it, nor a staleness, nor a depth."""
_SAMPLING = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfoConfig:
    """What a run is called, where it lives, and what its chances are seeded with."""

    name: Text = "run"
    """Of the run, in reports and trackers."""
    folder: Text | None = None
    """Journal, call logs and checkpoints go there; not set: runs/ and the name."""
    seed: CountOrNone = 0
    """Of the order of queries, of sampled tokens and of the draw (SPEC 1.1, 7.2)."""

    @property
    def place(self) -> str:
        return f"runs/{self.name}" if self.folder is None else self.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model that is trained."""

    name: Text
    """tiny, smollm2, or a folder with config.json and safetensors."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of weights and cache; not set: bfloat16 on CUDA, float32 elsewhere."""
    device: Text | None = None
    """cpu, cuda or cuda:N; not set: CUDA where there is one."""
    family: Text | None = None
    """How messages become tokens (qwen3, chatml...); not set: as the model's name tells."""
    thinking: Literal["all", "tool_cycle", "template"] = "all"
    """How much earlier thinking stays in prompts (SPEC 4.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How much is dispatched when, and when cells train; as in a file for `gyre simulate`."""

    groups_per_batch: Count
    """B: groups that one step consumes."""
    executions_per_group: Several
    """N: executions of one query."""
    steps_per_burst: Count = 1
    """mu: steps between two publications."""
    steps: Count | None = None
    """Steps of the whole run, a multiple of mu; not set: a run without an end (SPEC 1.6)."""
    extra_dispatch: Batches | None = None
    """phi: batches dispatched ahead; phi * B is whole; not set: 0.5 (SPEC 1.1).
    At most one of this, staleness and depth is set."""
    staleness: Batches | None = None
    """The mean staleness wanted, in versions; gives phi = staleness - (mu - 1) / 2 (SPEC 1.4)."""
    depth: Count | None = None
    """Q_c: unfinished groups under continuous dispatch (SPEC 1.5)."""
    placement: Literal["elastic", "async", "colocate"] = "elastic"
    """Cells enter training one by one, always train, or enter together (SPEC 2.1, 9)."""
    streaming: bool = True
    """Training begins with the first ready groups; else with all groups of a burst (SPEC 9)."""
    launch_order: Literal["oldest", "longest"] = "oldest"
    """Which queued group launches first among those of one version (SPEC 1.3)."""
    surplus: CountOrNone = 0
    """Executions dispatched per group above N, cancelled at its N-th valid reward (SPEC 6.5)."""
    supply_fraction: Share = 0.1
    """rho_min: part of a batch that is ready before a cell enters training for it (SPEC 2.1)."""
    supply_dwell_s: NotNegative = 5.0
    """tau: for how long it has been so (SPEC 2.1)."""
    rescue_s: Seconds = 60.0
    """How long work waits with no engine able to serve before a cell goes home (SPEC 2.5)."""
    min_valid: Count = 2
    """Valid rewards a group needs so that it is not void; placeholders count (SPEC 6.5)."""
    max_void: Fraction = 0.5
    """The run stops when a larger part of the last 2 B closed groups is void (SPEC 6.5)."""
    evaluation_holds_slot: bool = False
    """A terminated execution keeps its slot until it is closed (SPEC 1.3)."""
    endless_dispatch: bool = False
    """Groups are admitted as if the run had no end (SPEC 1.6)."""
    overcommit: Factor = 1.0
    """While every cell is home, an engine holds this many times its capacity in executions."""
    publish_s: Seconds = 120.0
    """An engine silent for so long during a publication is fenced (SPEC 2.2); live runs only."""
    join_s: NotNegative = 30.0
    """How long the core waits before its update for satellites that pull (SPEC 3.1); live only."""
    lease_s: Seconds = 60.0
    """A cell silent for so long is given up; its work returns (SPEC 3.2); live runs only."""
    group_s: Seconds = 60.0
    """How long cells that sum or share wait for each other, and the run for a late one; live."""

    @property
    def phi(self) -> float | None:
        """Batches dispatched ahead; None under continuous dispatch."""
        if self.depth is not None:
            return None
        if self.staleness is not None:
            return self.staleness - (self.steps_per_burst - 1) / 2
        return EXTRA_DISPATCH if self.extra_dispatch is None else self.extra_dispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsConfig:
    """The accelerators; as in a file for `gyre simulate`, which knows no stages and shards."""

    count: Count
    """K: cells, each with one whole model."""
    capacity: Count
    """C_e: executions a cell serves at once."""
    standalone: tuple[Count, ...] = ()
    """Executions each standalone engine serves at once; their sum is C_s (SPEC 1.3)."""
    nodes: Positive = 1.0
    """Nodes of a cell; simulation and planning count hours by it."""
    stages: Count = 1
    """Pipeline stages of a cell (SPEC 3.5)."""
    shards: Count = 1
    """Parts that each layer of a cell is split into."""
    experts: Count = 1
    """Ranks of a stage that the experts of a layer are dealt out to; no trainer here does."""
    contexts: Count = 1
    """Ranks that the tokens of a pack are dealt out to, at each stage; no trainer here does."""
    engine: Text = "embedded"
    """What serves: embedded, vllm, sglang, or for tests MODULE:FUNCTION?key=value."""
    server: ServerConfig | None = None
    """The server of vllm or sglang, which every cell starts for itself; not set: as it is found."""
    trainer: Text | None = None
    """MODULE:FUNCTION?key=value of a trainer for cells of one rank; not set: the built-in one."""
    threads: Count | None = None
    """CPU threads of each cell; not set: the machine's cores shared out among them."""

    @property
    def ranks(self) -> int:
        """Processes of one cell."""
        return self.stages * self.shards * self.contexts

    @property
    def server_start_s(self) -> float:
        """How long the server of a cell may take to come up; 0 where it has none."""
        if self.engine not in SERVERS:
            return 0.0
        return (ServerConfig() if self.server is None else self.server).start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The machines that a run's processes start on."""

    kind: Literal["local", "ray"] = "local"
    """This machine alone, or those of a Ray cluster, which then share the run's folder."""
    address: Text = "auto"
    """Of the Ray cluster; auto: the one that this machine belongs to, or RAY_ADDRESS names."""
    namespace: Text = "gyre"
    """What actors and placement groups of Ray are gathered under."""
    cell_nodes: Count = 1
    """Nodes that a cell is on, its ranks dealt out to them evenly and in order."""
    cell_cpus: Positive = 1.0
    """Cores that are kept for a cell on each of its nodes, and for each standalone engine."""
    cell_gpus: NotNegative = 0.0
    """GPUs that are kept for it there, which it alone sees."""
    cell_resource: Text | None = None
    """A custom resource of which each takes one, so that they go to nodes that have it."""
    agents: Literal["spread", "beside"] = "spread"
    """Executions run on all nodes in turn, or on the controller's."""
    agents_resource: Text | None = None
    """They run only on nodes that have some of this resource; not set: on all."""
    place_s: Seconds = 300.0
    """How long a cell may wait for a node that has room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn; what a harness asks for changes nothing (SPEC 4.6)."""

    temperature: NotNegative = _SAMPLING.temperature
    """What logits are divided by; 0 always takes the likeliest token."""
    top_p: Share = _SAMPLING.top_p
    """The likeliest tokens that together have this probability can be drawn."""
    top_k: Count | None = _SAMPLING.top_k
    """So many of the likeliest tokens can be drawn; not set: all."""
    max_tokens: Count = _SAMPLING.max_tokens
    """Most new tokens of one reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionConfig:
    """Which trajectories of an execution are trained (SPEC 7.2)."""

    max_trajectories: Count | Literal["all"] = 5
    """J_max: most trajectories of one execution."""

    @property
    def limit(self) -> int | None:
        return None if self.max_trajectories == "all" else self.max_trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessConfig:
    """The agent program that runs an execution, started in the task's workspace."""

    kind: Literal["command", "claude_code", "codex", "mini_swe_agent", "opencode", "qwen_code"] = (
        "command"
    )
    """Any command, or a program that `gyre harness prepare` has installed."""
    argv: Words | None = None
    """The command and its arguments, with {instruction}, {task} and {url} filled in, and {here},
    the folder that the run is started from."""
    version: Text | None = None
    """Of an installed program; not set: the one that is pinned."""
    args: tuple[str, ...] = ()
    """Arguments of an installed program, beside those that it always gets."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those that point at the proxy, filled in likewise; no place for secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Where harnesses and evaluations run."""

    kind: Literal["process", "local", "docker"] = "local"
    """Processes of this machine, for programs that are trusted; the same in namespaces that hold
    them back; or containers of Docker or Podman."""
    root: Text | None = None
    """Folder that programs see as their root; not set: the machine's system folders."""
    readable: tuple[str, ...] = ()
    """Further folders and files of the machine that programs read, under the same paths."""
    image: Text | None = None
    """Of containers, where a task names none."""
    runtime: Text | None = None
    """What the daemon runs containers with, such as runsc; not set: its default."""
    socket: Text | None = None
    """Where the daemon of containers listens; not set: where Docker does."""
    memory_mb: Count | None = 4096
    """Memory of all programs of an execution together, at most; a task may name less. As all
    limits, not in force for kind process."""
    processes: Count | None = 512
    """How many programs there are at once, threads included."""
    cpus: Positive | None = None
    """Cores they have at most; a task may name less. In force where there are control groups; not
    set: all."""
    disk_mb: Count | None = 8192
    """What they write at most, all in all; a task may name less."""
    require: tuple[Level, ...] = ()
    """What must hold programs back, or nothing is launched: seccomp, memory-cgroup..."""
    keep: Keep = "all"
    """Whose workspaces stay on the disk: of scored executions, of the others, of all, of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """What gives an execution its reward (SPEC 6.2)."""

    kind: Literal["command"] = "command"
    """A command, started in a copy of the workspace that the execution left."""
    argv: Words | None = None
    """The program and its arguments; not set: each task brings its own."""
    score: Literal["reward.json", "reward.txt", "exit-status"] = "reward.json"
    """Where the score stands: in a file that the command writes, or in its exit status."""
    timeout_s: Seconds = 600.0
    """An evaluator that takes longer has failed."""
    retries: CountOrNone = 2
    """How often a failed one is tried again, within the overall deadline."""
    placeholder: Literal["zero", "excluded"] = "zero"
    """What an execution counts as that left nothing to assess (SPEC 6.4)."""
    judge: JudgeConfig | None = None
    """Who judges tasks that have a rubric instead of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinesConfig:
    """Time an execution has, counted from its launch (SPEC 6.1)."""

    agent_s: Seconds = 3600.0
    """Until its harness is stopped; what it left is assessed."""
    overall_s: Seconds = 7200.0
    """Until it is closed, evaluation included; not below agent_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEvalConfig:
    """Held-out evaluation while the run goes on (SPEC 6.6)."""

    every: Count = 1
    """Publications from one evaluation to the next."""
    slots: CountOrNone = 0
    """Evaluation executions at once; 0: no evaluation."""
    tasks: TasksConfig | None = None
    """The tasks that are held out, a table as [tasks]; set when slots is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackersConfig:
    """Where metrics go beside the journal."""

    tensorboard: bool = True
    """Event files in the run's folder."""
    wandb: bool = False
    """Weights & Biases; its key comes from the environment."""
    mlflow: bool = False
    """MLflow; its server comes from the environment."""
    trackio: bool = False
    """trackio; local, unless the environment names a server or a Space."""
    project: Text = "gyre"
    """What runs are gathered under at W&B, MLflow (an experiment) and trackio."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that are asked for, by name."""
        known = ("tensorboard", "wandb", "mlflow", "trackio")
        return tuple(kind for kind in known if getattr(self, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How often weights and optimizer become durable, and how many of them stay."""

    every: Count = 1
    """Steps between two checkpoints; what is published is always one."""
    keep: Count = 2
    """Newest checkpoints that stay on disk, as do the published one and any that is in use."""
    optimizers: Count | None = None
    """Newest checkpoints that keep the optimizer's state; none: all that stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that a run file says, with what it leaves out filled in."""

    run: RunInfoConfig = field(default_factory=RunInfoConfig)
    model: ModelConfig
    schedule: ScheduleConfig
    cells: CellsConfig
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    tasks: TasksConfig
    harness: HarnessConfig
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    evaluate: RewardConfig = field(default_factory=RewardConfig)
    deadlines: DeadlinesConfig = field(default_factory=DeadlinesConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    draw: SelectionConfig = field(default_factory=SelectionConfig)
    objective: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    evaluation: HeldOutEvalConfig = field(default_factory=HeldOutEvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    trackers: TrackersConfig = field(default_factory=TrackersConfig)
