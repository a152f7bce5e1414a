"""A trainer that computes as it is written: compiling takes a minute, and these runs take five."""

from collections.abc import Mapping
from math import inf
from typing import Any

from benchmarks.gpu.live.warmed import Uncompiled

from gyre.model import attention_cuda
from gyre.model.network import Network
from gyre.train.cell import LocalTrainer


def trainer(network: Network, *, options: Mapping[str, str], **settings: Any) -> LocalTrainer:
    """The trainer of one device, whose attention is always in tiles."""
    # Blocks, which are for the bushiest packs, hold all scores at once where they do not compile.
    attention_cuda.TILE_SPEED = inf
    return Uncompiled(network, **settings)
