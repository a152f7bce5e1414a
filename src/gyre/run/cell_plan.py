"""Everything a cell process is told, in one file: model, sections, its place among the cells."""

from dataclasses import dataclass
from pathlib import Path

from gyre.words.sections import (
    EngineSection,
    LimitsSection,
    ObjectiveSection,
    OptimizerSection,
    TrainerSection,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
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
    """Whoever asks shows this key."""
    share: Path
    """Folder in memory: weights and cached blocks of this machine's cells."""
    store: Path
    """File in which the cells of this machine meet."""
    timeout_s: float
    """How long a cell waits for the others of a group."""
    engine: EngineSection
    trainer: TrainerSection
    objective: ObjectiveSection
    optimizer: OptimizerSection | None
    """The core's; others sum, and it steps (SPEC 3.1)."""
    limits: LimitsSection
    stages: int = 1
    """Of its pipeline (SPEC 3.5)."""
    shards: int = 1
    """Of each layer."""
    engine_factory: str | None = None
    """MODULE:FUNCTION?key=value of an engine in place of the embedded one."""
    trainer_factory: str | None = None
    checkpoint: Path | None = None
    """Folder whose weights, version and optimizer's state it begins with, in place of `model`'s."""
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
