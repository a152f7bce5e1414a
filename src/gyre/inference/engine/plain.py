"""The network over a pass, layer by layer, on any device and in any type."""

import numpy as np
import torch
from torch import Tensor

from gyre.inference.engine.attention import PagedAttention, Scratch
from gyre.inference.engine.forward import ForwardBatch
from gyre.inference.engine.joined import FusedCpuLayers, can_join
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.sampler import BatchSampling, sample_packed
from gyre.model.network import Network


class PlainForward:
    """Runs the network's own layers, or on a CPU their joined form, which is faster."""

    returns_early = False

    def __init__(self, network: Network, store: KvCache, *, join: bool = True) -> None:
        self._network = network
        self._store = store
        self._join = join and can_join(network)
        self._joined: FusedCpuLayers | None = None
        self._scratch = Scratch(store)

    def __call__(self, work: ForwardBatch, ids: Tensor | None = None) -> Tensor:
        network = self._network
        if self._join and self._joined is None:
            self._joined = FusedCpuLayers(network)
        layers = network if self._joined is None else self._joined
        attend = PagedAttention(work, self._store, self._scratch, network.dtype)
        hidden = network.embed(self._on(work.ids) if ids is None else ids)
        rotary = network.rotary(hidden, self._on(work.positions))
        for index in range(network.shape.layers):
            hidden = layers.layer(index, hidden, rotary, attend)
        last = self._on(work.starts[work.wanted + 1] - 1)
        hidden = network.norm(hidden[:, last]).squeeze(0)
        if self._joined is not None:
            return self._joined.logits(hidden)
        return torch.nn.functional.linear(hidden, network.head)

    def sample(self, logits: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
        return sample_packed(logits, draws.on(logits.device))

    def reload(self) -> None:
        self._joined = None

    def forget(self) -> None:
        self._joined = None
        self._scratch = Scratch(self._store)

    def _on(self, values: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> Tensor:
        return torch.from_numpy(values).to(self._network.device, torch.int64)
