"""A trainer for tests: a model that looks at no context, the real objective, failures on demand."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.model.packed_batch import PackedBatch
from gyre.testing.timed_script import refuse_unknown
from gyre.trainer.trainer import Trainer
from gyre.types.errors import CellError, NotFinite, OutOfMemory
from gyre.types.training import Claim, ClaimReport, Score, StepReport

Fault = Literal["out of memory", "not finite", "lost"]
"""What goes wrong with a call: no memory, a value that is no number, or the cell is gone."""


class ScriptedTrainer(Trainer):
    """A CellTrainer whose network is one logit per token: the mean of its row of the head.

    Everything around the forward pass is real: sums, steps, weights, what rests.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.next_faults: deque[Fault | None] = deque()
        """What goes wrong with the next calls that compute or reload, one each."""

    def score(self, claim: Claim) -> tuple[Score, ...]:
        self._fail("scoring a claim")
        return super().score(claim)

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        self._fail("training on a claim")
        return super().train(claim, num_executions=num_executions, scores=scores)

    def step(self) -> StepReport:
        self._fail("a step")
        return super().step()

    def reload(self) -> None:
        self._fail("restoring a trainer")
        super().reload()

    def forward(self, made: PackedBatch) -> Tensor:
        """The same for a token wherever it stands."""
        return torch.log_softmax(self.network.head.double().mean(1), 0)[made.labels]

    def _fail(self, doing: str) -> None:
        match self.next_faults.popleft() if self.next_faults else None:
            case "out of memory":
                raise OutOfMemory(f"{doing}: no room, as was asked for")
            case "not finite":
                raise NotFinite(f"{doing}: no number, as was asked for", retryable=False)
            case "lost":
                raise CellError(f"{doing}: the cell is gone, as was asked for")
            case None:
                return


def scripted(
    network: Network,
    *,
    section: TrainerConfig,
    objective: LossConfig,
    optimizer: OptimizerConfig | None,
    temperature: float,
    options: Mapping[str, str],
) -> ScriptedTrainer:
    """For a run file: `cells.trainer = "gyre.testing.trainers:scripted"`."""
    refuse_unknown(options, ())
    return ScriptedTrainer(
        network,
        section=section,
        objective=objective,
        optimizer=optimizer,
        temperature=temperature,
    )
