"""The CellTrainer protocol: what a cell calls of a trainer on one device, and who makes one."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from gyre.config.sections import LossConfig, OptimizerConfig, TrainerConfig
from gyre.model.network import Network
from gyre.trainer.optimizer import OptimizerState
from gyre.types.training import Claim, ClaimReport, Score, StepReport


class CellTrainer(Protocol):
    """A trainer on one device: claims add to one sum, and a step applies it (SPEC 3).

    Its weights are those of the network, which the cell's engine may compute with while it rests.
    Raises CellError: OutOfMemory and NotFinite leave everything as it was before the call.
    """

    network: Network
    version: int
    """Of the weights it holds; set once, to what it begins with."""

    @property
    def has_optimizer(self) -> bool:
        """Whether it is the core's; others sum, and the core steps (SPEC 3.1)."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether its memory is with the engine, so that it computes nothing."""
        ...

    def score(self, claim: Claim) -> tuple[Score, ...]:
        """Per share: sum of log rho and count, by forward passes alone (SPEC 8.3)."""
        ...

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        """Adds the claim's gradient, or none of it; `num_executions` is B*N of the batch.

        Scores that are given, per share over all its packs, stand for the claim's own.
        """
        ...

    def step(self) -> StepReport:
        """One update by the sum, which is zero afterwards; also when it was zero before."""
        ...

    def clear(self) -> None:
        """Forgets what was added since the last step."""
        ...

    @property
    def gradients(self) -> list[Tensor]:
        """The sum as flat tensors, of the same shapes for every cell of one model; not a copy."""
        ...

    def replace_gradients(self, buckets: Sequence[Tensor]) -> None:
        """The sum is this one, which was reduced over cells; refused whole or taken whole."""
        ...

    def load_weights(self, tensors: Mapping[str, Tensor], *, version: int) -> None:
        """Weights of another version, by parameter, take the place of these."""
        ...

    def rewrite(self) -> None:
        """The network has the core's weights again, after an engine loaded others into it.

        A satellite has none of its own, and nothing happens.
        """
        ...

    def export(self) -> OptimizerState:
        """What a checkpoint must hold for the next step to be the same, also at rest; no copy."""
        ...

    def load(self, state: OptimizerState, *, version: int) -> None:
        """Goes on from what `export` gave, weights included."""
        ...

    def offload(self, *, weights: bool = False) -> None:
        """Gives the device's memory back, that of the weights too on request."""
        ...

    def reload(self) -> None:
        """Everything as before `offload`; OutOfMemory leaves it resting."""
        ...


class TrainerFactory(Protocol):
    """What `cells.trainer = "MODULE:FUNCTION?key=value"` of a run file names."""

    def __call__(
        self,
        network: Network,
        *,
        section: TrainerConfig,
        objective: LossConfig,
        optimizer: OptimizerConfig | None,
        temperature: float,
        options: Mapping[str, str],
    ) -> CellTrainer:
        """A trainer of this network; without an optimizer it is a satellite's (SPEC 3.1)."""
        ...
