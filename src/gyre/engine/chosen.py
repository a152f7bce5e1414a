"""Which forward pass a network gets: graphs on CUDA, the plain one elsewhere."""

import torch

from gyre.engine.forward import Forward
from gyre.engine.graphs import GraphForward
from gyre.engine.paged import BLOCK_TOKENS
from gyre.engine.plain import PlainForward
from gyre.engine.store import Store
from gyre.model.network import Network
from gyre.words.sections import EngineSection

NARROW = (torch.bfloat16, torch.float16)
"""Types that the kernels of graphs take."""
HEADS = (16, 32, 64, 128, 256)
"""Sizes of a head that they take: tiles are powers of two."""


def forward_for(network: Network, store: Store, section: EngineSection) -> Forward:
    """The fastest that can serve this network and store."""
    fits = network.dtype in NARROW and network.shape.head_dim in HEADS
    if network.device.type == "cuda" and fits and store.block_tokens == BLOCK_TOKENS:
        return GraphForward(network, store, graphs=section.graphs)
    return PlainForward(network, store)
