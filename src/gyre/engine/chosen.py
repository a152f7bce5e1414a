"""Which forward pass a network gets: graphs on CUDA, the plain one elsewhere."""

import torch

from gyre.engine.forward import Forward
from gyre.engine.graphs import GraphForward
from gyre.engine.paged import BLOCK_TOKENS, try_out
from gyre.engine.plain import PlainForward
from gyre.engine.store import Store
from gyre.model.network import Network
from gyre.words.errors import ConfigError
from gyre.words.sections import EngineSection

NARROW = (torch.bfloat16, torch.float16)
"""Types that the kernels of graphs take."""
HEADS = (16, 32, 64, 128, 256)
"""Sizes of a head that they take: tiles are powers of two."""


CAPABILITY = (8, 0)
"""Of the first devices that they run on."""


def forward_for(network: Network, store: Store, section: EngineSection) -> Forward:
    """The fastest that can serve this network and store; ConfigError where it cannot run."""
    fits = network.dtype in NARROW and network.shape.head_dim in HEADS
    is_fast = network.device.type == "cuda" and _capability(network.device) >= CAPABILITY
    if is_fast and fits and store.block_tokens == BLOCK_TOKENS:
        try:
            try_out(network.shape, network.dtype, network.device)
        except RuntimeError as error:
            # Now, and not in every pass of a run.
            message = f"the engine's kernels cannot run on {network.device}: {error}"
            raise ConfigError(message) from error
        return GraphForward(network, store, graphs=section.graphs)
    return PlainForward(network, store)


def _capability(device: torch.device) -> tuple[int, int]:
    found: tuple[int, int] = torch.cuda.get_device_capability(device)
    return found
