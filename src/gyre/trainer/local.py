"""The Trainer port over a trainer of our own, on one device of this process."""

from pathlib import Path

import torch

from gyre.config.sections import ObjectiveSection, OptimizerSection, TrainerSection
from gyre.model.loader import load_network
from gyre.trainer.cell import LocalTrainer
from gyre.types.ports import Trainer


def open_trainer(
    model: str | Path,
    *,
    section: TrainerSection,
    objective: ObjectiveSection,
    optimizer: OptimizerSection | None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    version: int = 0,
) -> Trainer:
    """A model by name or folder, ready to train; without an optimizer, as a satellite does."""
    return LocalTrainer(
        load_network(model, device=device, dtype=dtype),
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        version=version,
    )
