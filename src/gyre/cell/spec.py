"""What a cell process is started with, in one file: model, sections, its place among cells."""

from dataclasses import dataclass, field
from pathlib import Path

from gyre.config.sections import (
    EngineConfig,
    LimitsConfig,
    LossConfig,
    OptimizerConfig,
    ServerConfig,
    TrainerConfig,
    TransportConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """One cell, or a standalone engine, which is a cell that never trains."""

    name: str
    cell: int
    """Its index; standalone engines follow the cells."""
    trains: bool
    model: str
    """A name or a folder: what it begins with."""
    version: int
    """Of those weights."""
    device: str | None
    dtype: str | None
    seed: int
    temperature: float
    """Of the rollouts, so that ratios compare like with like."""
    threads: int | None
    """Of its arithmetic; None: as torch decides."""
    key_file: Path
    """Requests to the cell show this key."""
    share: Path
    """Folder in memory: weights and cached blocks of this machine's cells."""
    store: Path
    """File in which the cells of this machine meet."""
    timeout_s: float
    """How long a cell waits for the others of a group."""
    engine: EngineConfig
    trainer: TrainerConfig
    objective: LossConfig
    optimizer: OptimizerConfig | None
    """The core's; others sum, and it steps (SPEC 3.1)."""
    limits: LimitsConfig
    stages: int = 1
    """Of its pipeline (SPEC 3.5)."""
    shards: int = 1
    """Of each layer."""
    serves_with: str = "embedded"
    """What its engine is: embedded, vllm, sglang, or MODULE:FUNCTION?key=value."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """How it starts vllm or sglang."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    """How it gets weights and cached blocks from others."""
    trainer_factory: str | None = None
    checkpoint: Path | None = None
    """Folder whose weights, version and optimizer's state it begins with, in place of `model`'s."""
    host: str = "127.0.0.1"
    """Address of its machine, by which the others of the run reach it."""
    doors: tuple[str, ...] = ()
    """HOST:PORT on each further node that the cell is on, where ranks of it are started."""
    port: int = 0
    """Where it listens; 0 picks a free one. A cell that comes back keeps the one it had."""

    @property
    def source(self) -> str:
        """What its weights are read from."""
        return self.model if self.checkpoint is None else str(self.checkpoint)

    @property
    def ranks(self) -> int:
        """Its processes: the driver, and those that follow it."""
        return self.stages * self.shards

    @property
    def has_own_weights(self) -> bool:
        """Whether the trainer computes on other weights than the embedded engine."""
        return self.ranks > 1 or self.trainer.kind == "megatron"

    def node_agent_of(self, rank: int) -> str | None:
        """Where a rank is started; None beside the driver. Nodes have as many each, in order."""
        node = rank // self._ranks_of_node
        return None if node == 0 else self.doors[node - 1]

    def host_of(self, rank: int) -> str:
        """Address of the machine that a rank is on."""
        node_agent = self.node_agent_of(rank)
        return self.host if node_agent is None else node_agent.rpartition(":")[0]

    def local_rank(self, rank: int) -> int:
        """Which it is among the ranks of its node, from 0."""
        return rank % self._ranks_of_node

    @property
    def _ranks_of_node(self) -> int:
        return -(-self.ranks // (1 + len(self.doors)))
