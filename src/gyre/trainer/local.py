"""The CellTrainer protocol over Gyre's own trainer, on one device of this process."""

from pathlib import Path

import torch

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.loader import load_network
from gyre.trainer.trainer import Trainer
from gyre.types.protocols import CellTrainer


def open_trainer(
    model: str | Path,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    version: int = 0,
) -> CellTrainer:
    """A model by name or folder, ready to train; without an optimizer, as a satellite does."""
    return Trainer(
        load_network(model, device=device, dtype=dtype),
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        version=version,
    )
