"""Which forward pass a network gets: graphs on CUDA, the plain one elsewhere."""

import torch

from gyre.config.sections import EngineConfig
from gyre.inference.engine.forward import Forward
from gyre.inference.engine.graphs import GraphForward
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.paged import BLOCK_TOKENS, try_out
from gyre.inference.engine.plain import PlainForward
from gyre.model.network import Network
from gyre.types.errors import ConfigError

NARROW = (torch.bfloat16, torch.float16)
"""Types that the kernels of graphs take."""
HEADS = (16, 32, 64, 128, 256)
"""Sizes of a head that they take: tiles are powers of two."""


CAPABILITY = (8, 0)
"""Of the first devices that they run on."""


def select_forward(network: Network, store: KvCache, section: EngineConfig) -> Forward:
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
