"""Passes on CUDA: compiled layers, and decoding replayed as captured graphs."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gyre.engine.forward import Pass
from gyre.engine.paged import BLOCK_TOKENS, Decoding, Paged, Prefilling
from gyre.engine.store import Store
from gyre.model.network import Attend, Network
from gyre.words.packs import Ints

Indices = NDArray[np.integer]

SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Numbers of calls that decoding is captured for; a pass takes the next larger one."""


def _layer(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
) -> Tensor:
    return layer(  # type: ignore[no-any-return]
        hidden, attention_mask=None, position_embeddings=rotary, attend=attend
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    """Decoding of a fixed number of calls: numbers go in, logits come out."""

    graph: torch.cuda.CUDAGraph
    numbers: "_Numbers"
    logits: Tensor
    paged: Paged


class _Numbers:
    """What a decoding graph reads of its calls, in one tensor so that one copy brings it."""

    def __init__(self, num_calls: int, most_blocks: int, device: torch.device) -> None:
        self.most_blocks = most_blocks
        # Two take turns, because a pass is written while the copy of the one before may be going.
        self._hosts = [
            torch.zeros((num_calls, 6 + most_blocks), dtype=torch.int32, pin_memory=True)
            for _ in range(2)
        ]
        self._device = torch.zeros_like(self._hosts[0], device=device)

    def bring(self, work: Pass, ids: Tensor | None = None) -> None:
        """The pass's calls, the first one repeated up to the graph's number of calls."""
        self._hosts.reverse()
        host = self._hosts[0].numpy()
        num, width = work.blocks.shape
        before, tail = np.divmod(work.lengths - 1, BLOCK_TOKENS)
        host[:num, 0] = work.ids
        host[:num, 1] = work.positions
        host[:num, 2] = work.slots
        host[:num, 3] = before + 1
        host[:num, 4] = tail + 1
        host[:num, 5] = work.blocks[np.arange(num), before]
        host[:num, 6 : 6 + width] = work.blocks
        host[num:] = host[0]
        self._device.copy_(self._hosts[0], non_blocking=True)
        if ids is not None:
            # Rows that fill up write where the first one writes, so they must be as it is.
            self._device[:num, 0] = ids
            self._device[num:, 0] = ids[0]

    @property
    def ids(self) -> Tensor:
        return self._device[:, 0].long()

    @property
    def positions(self) -> Tensor:
        return self._device[:, 1].long()

    @property
    def slots(self) -> Tensor:
        return self._device[:, 2].long()

    def decoding(self, num_rows: int) -> Decoding:
        numbers = self._device
        return Decoding(
            num_blocks=numbers[:, 3].contiguous()[:, None, None],
            blocks=numbers[:, 6:].contiguous()[:, None, None],
            last=numbers[:, 5].contiguous(),
            tail=numbers[:, 4].contiguous(),
            num_rows=num_rows,
        )


class GraphForward:
    """The network on CUDA; a graph is captured the first time its number of calls is needed."""

    returns_early = True

    def __init__(self, network: Network, store: Store, *, graphs: bool) -> None:
        self._network = network
        self._store = store
        self._most_blocks = min(store.num_blocks, -(-network.shape.context // BLOCK_TOKENS))
        self._use_graphs = graphs
        self._graphs: dict[int, _Graph] = {}
        self._pool: Any = None
        self._layer: Any = torch.compile(_layer, dynamic=True)

    @torch.inference_mode()
    def __call__(self, work: Pass, ids: Tensor | None = None) -> Tensor:
        size = self._size(len(work.lengths))
        if self._use_graphs and work.is_decode and size is not None:
            graph = self._graphs.get(size) or self._capture(size, work)
            graph.numbers.bring(work, ids)
            graph.graph.replay()
            return self._wanted(graph.logits, work.wanted, len(work.lengths))
        return self._run(work, ids)

    def reload(self) -> None:
        """New weights stand where the old ones stood, so graphs find them."""

    def forget(self) -> None:
        """Graphs hold addresses of weights and of the store, which are given back now."""
        self._graphs.clear()
        self._pool = None

    def _size(self, num_calls: int) -> int | None:
        at = bisect_left(SIZES, num_calls)
        return SIZES[at] if at < len(SIZES) else None

    def _wanted(self, logits: Tensor, wanted: Ints, num_calls: int) -> Tensor:
        if len(wanted) == num_calls and bool((wanted == np.arange(num_calls)).all()):
            return logits[:num_calls]
        return logits.index_select(0, _on(wanted, logits.device))

    def _capture(self, size: int, work: Pass) -> _Graph:
        numbers = _Numbers(size, self._most_blocks, self._network.device)
        numbers.bring(work)
        # Compiles and chooses kernels, which must not happen while a graph is captured.
        for _ in range(2):
            self._decode(numbers)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits, paged = self._decode(numbers)
        self._pool = self._pool or graph.pool()
        made = _Graph(graph, numbers, logits, paged)
        self._graphs[size] = made
        return made

    def _decode(self, numbers: _Numbers) -> tuple[Tensor, Paged]:
        decoding = numbers.decoding(len(numbers.ids))
        paged = Paged(self._store, numbers.slots, decoding=decoding, prefilling=None)
        hidden = self._hidden(numbers.ids, numbers.positions, paged)
        return hidden @ self._network.head.T, paged

    def _hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        network = self._network
        hidden = network.embed(ids)
        rotary = network.rotary(hidden, positions)
        # Layers differ in their number, which is then an input and not a reason to compile again.
        with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
            for layer in network.layers:
                hidden = self._layer(layer, hidden, rotary, attend)
        return network.norm(hidden).squeeze(0)

    def _run(self, work: Pass, ids: Tensor | None) -> Tensor:
        """A pass in which some calls compute several tokens; those with one go first."""
        device = self._network.device
        counts = np.diff(work.starts)
        order = np.argsort(counts > 1, kind="stable")
        num = int((counts == 1).sum())
        rows = np.concatenate([np.arange(work.starts[c], work.starts[c + 1]) for c in order])
        ends = np.cumsum(counts[order]) - 1
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        paged = Paged(
            self._store,
            _on(work.slots[rows], device),
            decoding=self._decoding(work, order[:num]) if num else None,
            prefilling=self._prefilling(work, order[num:]) if num < len(order) else None,
        )
        # Ids that are given come one for each call, and then rows are calls in their order.
        ids = _on(work.ids[rows], device) if ids is None else ids
        hidden = self._hidden(ids, _on(work.positions[rows], device), paged)
        last = hidden.index_select(0, _on(ends[place[work.wanted]], device))
        return last @ self._network.head.T

    def _decoding(self, work: Pass, calls: Indices) -> Decoding:
        size = self._size(len(calls)) or len(calls)
        numbers = _Numbers(size, self._most_blocks, self._network.device)
        one = work.starts[calls]
        numbers.bring(
            Pass(
                ids=work.ids[one],
                positions=work.positions[one],
                slots=work.slots[one],
                starts=np.arange(len(calls) + 1, dtype=np.int32),
                lengths=work.lengths[calls],
                blocks=work.blocks[calls],
                wanted=np.arange(len(calls), dtype=np.int32),
            )
        )
        return numbers.decoding(len(calls))

    def _prefilling(self, work: Pass, calls: Indices) -> Prefilling:
        device = self._network.device
        counts, lengths = np.diff(work.starts)[calls], work.lengths[calls]
        slots = [
            (work.blocks[call][:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).ravel()[:length]
            for call, length in zip(calls, lengths, strict=True)
        ]
        zero = np.zeros(1, dtype=np.int32)
        return Prefilling(
            queries=_on(np.concatenate([zero, np.cumsum(counts)]), device).int(),
            keys=_on(np.concatenate([zero, np.cumsum(lengths)]), device).int(),
            slots=_on(np.concatenate(slots), device),
            most_queries=int(counts.max()),
            most_keys=int(lengths.max()),
        )


def _on(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(
        device, non_blocking=True
    )
