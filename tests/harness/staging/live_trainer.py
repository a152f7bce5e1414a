"""A trainer whose claims wait until the cells that are to share their batch train as well."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from staging.live_script import FOLDER, shared

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.testing.emulated_cell import ClaimCost, EmulatedTrainer
from gyre.types.training import Claim, ClaimReport, Score

LOOK_S = 0.02


class WaitingTrainer(EmulatedTrainer):
    """Takes the time of a claim once the file of its step is there."""

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        folder = os.environ.get(FOLDER)
        while folder and not (Path(folder) / shared(self.version)).exists():
            time.sleep(LOOK_S)
        return super().train(claim, num_executions=num_executions, scores=scores)


def trainer(
    network: Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float,
    options: Mapping[str, str],
) -> WaitingTrainer:
    """A claim takes `base_s`."""
    return WaitingTrainer(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
        cost=ClaimCost(base_s=float(options["base_s"])),
    )
