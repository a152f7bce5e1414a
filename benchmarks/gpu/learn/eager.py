"""A trainer that computes as it is written: compiling takes a minute, and these runs take five."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.live.warmed import Uncompiled

from gyre.model.attention import in_tiles
from gyre.model.network import Network
from gyre.trainer.trainer import Trainer
from gyre.types.training import Claim, ClaimReport, Score


class InTiles(Uncompiled):
    """The trainer of one device, whose attention is always in tiles.

    Blocks, which are for the bushiest packs, hold all scores at once where they do not compile.
    """

    def score(self, claim: Claim) -> tuple[Score, ...]:
        with in_tiles():
            return super().score(claim)

    def train(
        self, claim: Claim, *, num_executions: int, scores: Sequence[Score] | None = None
    ) -> ClaimReport:
        with in_tiles():
            return super().train(claim, num_executions=num_executions, scores=scores)


def trainer(network: Network, *, options: Mapping[str, str], **settings: Any) -> Trainer:
    return InTiles(network, **settings)
