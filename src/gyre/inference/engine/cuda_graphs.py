"""Captured decode graphs and paged attention."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gyre.inference.engine.forward import ForwardBatch
from gyre.inference.engine.kv_cache import KvCache
from gyre.inference.engine.sampler import BatchSampling, packed, sample_packed
from gyre.model.attention_kernels import LiveObjects
from gyre.model.network import Attend, ModelDims, Network

BLOCK_TOKENS = 128
"""Tokens of a cache block, whose keys lie together and are read in long runs."""

_live: LiveObjects["PagedBatch"] = LiveObjects()


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """The D decoding calls of a pass, one token each; they are its first rows."""

    blocks: Tensor
    """(D, most), int32: each call's, in order, and then any."""
    lengths: Tensor
    """(D), int32: how many tokens its query sees."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillBatch:
    """The prefilling calls of a pass, several tokens each; their rows follow the decoding ones."""

    queries: Tensor
    """(P + 1), int32: where each call's queries begin, counted from the first call's."""
    keys: Tensor
    """(P + 1), int32: where each call's keys begin among those gathered."""
    slots: Tensor
    """Of all their keys, in order."""
    most_queries: int
    most_keys: int


class PagedBatch:
    """The calls of one pass, or of one captured graph: where their keys are and who sees them."""

    def __init__(
        self,
        store: KvCache,
        slots: Tensor,
        *,
        decoding: DecodeBatch | None,
        prefilling: PrefillBatch | None,
    ) -> None:
        self._store = store
        self._slots = slots
        self._decoding = decoding
        self._prefilling = prefilling
        self.handle = _live.enter(self)

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        operator: Any = torch.ops.gyre.paged_attention
        return operator(query, key, value, layer, self.handle, scale)  # type: ignore[no-any-return]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Writes the pass's keys and values, then attends; the shapes are those of Attend."""
        held = self._store.layer(layer)
        _reading().write(held, self._slots, _by_rows(key[0]), _by_rows(value[0]))
        num = 0 if self._decoding is None else len(self._decoding.lengths)
        parts = []
        if self._decoding is not None:
            parts.append(_decode(self._decoding, query[0, :, :num], held, scale))
        if self._prefilling is not None:
            parts.append(_prefill(self._prefilling, query[0, :, num:], held, scale))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)


@torch.library.custom_op("gyre::paged_attention", mutates_args=())
def _paged_attention(
    query: Tensor, key: Tensor, value: Tensor, layer: int, handle: Tensor, scale: float
) -> Tensor:
    return _live[handle].attend(layer, query, key, value, scale)


@_paged_attention.register_fake
def _paged_attention_shape(
    query: Tensor, key: Tensor, value: Tensor, layer: int, handle: Tensor, scale: float
) -> Tensor:
    batch, heads, tokens, size = query.shape
    return query.new_empty((batch, tokens, heads, size))


@cache
def _reading() -> Any:
    # Triton, which it is written in, comes with torch for CUDA and with no other.
    return import_module("gyre.inference.engine.triton_kernels")


def try_out(shape: ModelDims, dtype: torch.dtype, device: torch.device) -> None:
    """RuntimeError where the device cannot run the kernels for heads of this shape."""
    sizes = (shape.heads, shape.kv_heads, shape.head_dim)
    _reading().try_out(*sizes, dtype, device, BLOCK_TOKENS)


def _decode(calls: DecodeBatch, query: Tensor, held: Tensor, scale: float) -> Tensor:
    """Queries (heads, D, d) to (D, heads, d); keys are read where they lie."""
    rows = _by_rows(query).transpose(0, 1)
    found: Tensor = _reading().attend(rows, held, calls.blocks, calls.lengths, scale, BLOCK_TOKENS)
    return found


def _by_rows(vectors: Tensor) -> Tensor:
    """The same, with the numbers of each vector next to each other."""
    return vectors if vectors.stride(-1) == 1 else vectors.contiguous()


def _prefill(calls: PrefillBatch, query: Tensor, held: Tensor, scale: float) -> Tensor:
    """Queries (heads, T, d) to (T, heads, d); each call's keys are gathered once."""
    keys = held[0].index_select(1, calls.slots).transpose(0, 1)
    values = held[1].index_select(1, calls.slots).transpose(0, 1)
    kernel: Any = torch.ops.aten._flash_attention_forward
    # Its causal mask is aligned to the last query and the last key of each call.
    found: Tensor = kernel(
        query.transpose(0, 1), keys, values, calls.queries, calls.keys,
        calls.most_queries, calls.most_keys, 0.0, True, False, scale=scale,
    )[0]  # fmt: skip
    return found


Indices = NDArray[np.integer]
T = TypeVar("T")

SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""Numbers of calls that decoding is captured for; a pass takes the next larger one."""
SPARED_PASSES = 16
"""Served by a larger graph before one is captured: numbers of calls are often but passed through,
and a capture takes as long as many passes."""

SPARE_BYTES = 2**31
"""More than any capture takes."""
PUT_OFF_PASSES = 1000
"""Made without a graph, or with a larger one, after a capture that failed: memory may be short for
long, and every attempt takes as long as many passes."""


def _layer(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend
) -> Tensor:
    return layer(  # type: ignore[no-any-return]
        hidden, attention_mask=None, position_embeddings=rotary, attend=attend
    )


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Sampling of all rows: what draws them goes in, what `sample_packed` gives comes out."""

    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    ids: Tensor
    packed: Tensor


@dataclass(frozen=True, slots=True)
class _Graph:
    """Decoding of a fixed number of calls: numbers go in, logits come out."""

    graph: torch.cuda.CUDAGraph
    numbers: "_Numbers"
    logits: Tensor
    paged: PagedBatch
    samplings: dict[bool, _Sampling] = field(default_factory=dict)
    """By whether any row is greedy."""


class FailureBackoff:
    """Keeps what failed from being tried again before it was asked for some times more."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._left: Counter[Hashable] = Counter()

    def is_due(self, what: Hashable) -> bool:
        """Whether it may be tried now; if not, it is nearer to that the next time."""
        if not self._left[what]:
            return True
        self._left[what] -= 1
        return False

    def fail(self, what: Hashable) -> None:
        self._left[what] = self._times

    def clear(self) -> None:
        self._left.clear()


class _Numbers:
    """What a decoding graph reads of its calls, in one tensor so that one copy brings it."""

    def __init__(self, num_calls: int, most_blocks: int, device: torch.device) -> None:
        self.most_blocks = most_blocks
        # Two take turns, because a pass is written while the copy of the one before may be going.
        self._hosts = [_Host(num_calls, 4 + most_blocks) for _ in range(2)]
        self._device = torch.zeros_like(self._hosts[0].rows, device=device)

    def bring(self, work: ForwardBatch, ids: Tensor | None = None) -> None:
        """The pass's calls, the shortest repeated up to the graph's number of calls."""
        self._hosts.reverse()
        # No thread waits for passes that sample nothing, so any number may be on their way.
        self._hosts[0].copied.synchronize()
        host = self._hosts[0].rows.numpy()
        num, width = work.blocks.shape
        host[:num, 0] = work.ids
        host[:num, 1] = work.positions
        host[:num, 2] = work.slots
        host[:num, 3] = work.lengths
        host[:num, 4 : 4 + width] = work.blocks
        # Rows that fill up write where the shortest writes, so they must be as it is; they are
        # computed like any other, and it has the fewest keys to read.
        shortest = int(work.lengths.argmin())
        host[num:] = host[shortest]
        self._device.copy_(self._hosts[0].rows, non_blocking=True)
        self._hosts[0].copied.record()
        if ids is not None:
            self._device[:num, 0] = ids
            if num < len(host):
                self._device[num:, 0] = ids[shortest]

    @property
    def ids(self) -> Tensor:
        return self._device[:, 0].long()

    @property
    def positions(self) -> Tensor:
        return self._device[:, 1].long()

    @property
    def slots(self) -> Tensor:
        return self._device[:, 2].long()

    @property
    def decoding(self) -> DecodeBatch:
        return DecodeBatch(blocks=self._device[:, 4:], lengths=self._device[:, 3].contiguous())


class _Host:
    """Rows in main memory that a device copies by itself, and whether it has."""

    def __init__(self, num_rows: int, size: int) -> None:
        self.rows = torch.zeros((num_rows, size), dtype=torch.int32, pin_memory=True)
        self.copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]


class GraphForward:
    """The network on CUDA; a graph is captured the first time its number of calls is needed."""

    returns_early = True

    def __init__(self, network: Network, store: KvCache, *, graphs: bool) -> None:
        self._network = network
        self._store = store
        self._most_blocks = min(store.num_blocks, -(-network.shape.context // BLOCK_TOKENS))
        self._use_graphs = graphs
        self._graphs: dict[int, _Graph] = {}
        self._replayed: _Graph | None = None
        """The graph of the last pass, where all of its calls want a token."""
        self._spared: Counter[int] = Counter()
        """By size: passes that a larger graph has served."""
        self._met: set[Hashable] = set()
        """What was captured before, so that its kernels exist, also after its graph was dropped."""
        self._put_off = FailureBackoff(PUT_OFF_PASSES)
        self._pool: Any = None
        self._layer: Any = torch.compile(_layer, dynamic=True)

    @torch.inference_mode()
    def __call__(self, work: ForwardBatch, ids: Tensor | None = None) -> Tensor:
        num = len(work.lengths)
        graph = self._graph(work) if self._use_graphs and work.is_decode else None
        self._replayed = graph if len(work.wanted) == num else None
        if graph is None:
            return self._run(work, ids)
        graph.numbers.bring(work, ids)
        graph.graph.replay()
        if self._replayed is not None:
            return graph.logits[:num]
        return graph.logits.index_select(0, _on(work.wanted, graph.logits.device))

    @torch.inference_mode()
    def sample(self, logits: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
        graph, num = self._replayed, len(logits)
        if graph is None or draws.is_cut:
            return _sampled(logits, draws.on(logits.device))
        sampling = graph.samplings.get(draws.is_greedy) or self._tried(
            (len(graph.logits), draws.is_greedy), lambda: self._capture_sampling(graph, draws)
        )
        if sampling is None:
            return _sampled(logits, draws.on(logits.device))
        sampling.numbers[:num].copy_(draws.numbers, non_blocking=True)
        sampling.graph.replay()
        return sampling.ids[:num], sampling.packed[:num]

    def reload(self) -> None:
        """New weights stand where the old ones stood, so graphs find them."""

    def forget(self) -> None:
        """Graphs hold addresses of weights and of the store, which are given back now."""
        self._graphs.clear()
        self._spared.clear()
        self._put_off.clear()
        self._replayed = None
        self._pool = None

    def _graph(self, work: ForwardBatch) -> _Graph | None:
        """The smallest that has room for the calls, or one that was captured already."""
        at = bisect_left(SIZES, len(work.lengths))
        if at == len(SIZES):
            return None
        size = SIZES[at]
        if size in self._graphs:
            return self._graphs[size]
        larger = min((one for one in self._graphs if one > size), default=None)
        if larger is not None and self._spared[size] < SPARED_PASSES:
            self._spared[size] += 1
            return self._graphs[larger]
        made = self._tried(size, lambda: self._capture(size, work))
        return self._graphs[larger] if made is None and larger is not None else made

    def _tried(self, what: Hashable, capture: Callable[[], T]) -> T | None:
        """What the capture gives; None where it fails, and for some passes after that."""
        if not self._put_off.is_due(what):
            return None
        try:
            return capture()
        except (RuntimeError, MemoryError):
            # There may be room for the pass where there is none for a graph; if not, it says so.
            self._put_off.fail(what)
            return None

    def _capture(self, size: int, work: ForwardBatch) -> _Graph:
        numbers = _Numbers(size, self._most_blocks, self._network.device)
        numbers.bring(work)
        graph, (logits, paged) = self._captured(size, lambda: self._decode(numbers))
        self._graphs[size] = _Graph(graph, numbers, logits, paged)
        return self._graphs[size]

    def _capture_sampling(self, graph: _Graph, draws: BatchSampling) -> _Sampling:
        size, device = len(graph.logits), graph.logits.device
        rows = replace(draws, numbers=torch.ones((size, 4), dtype=torch.float64, device=device))
        what = (size, draws.is_greedy)
        made, (ids, numbers) = self._captured(what, lambda: _sampled(graph.logits, rows))
        graph.samplings[draws.is_greedy] = _Sampling(made, rows.numbers, ids, numbers)
        return graph.samplings[draws.is_greedy]

    def _captured(self, what: Hashable, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        if what not in self._met:
            # Compiles and chooses kernels, which must not happen while a graph is captured.
            for _ in range(2):
                work()
            self._met.add(what)
        torch.cuda.synchronize(self._network.device)
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which each time gives all memory that is kept for passes back to
        # the driver; that is done only where a capture might not find enough.
        if torch.cuda.mem_get_info(self._network.device)[0] < SPARE_BYTES:
            torch.cuda.empty_cache()
        # Left empty by a capture that cannot be ended: its memory takes no other.
        pool, self._pool = self._pool, None
        with torch.cuda.stream(_capturing(self._network.device)):
            # Other threads may allocate meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                found = work()
            finally:
                graph.capture_end()
                self._pool = pool
        self._pool = pool or graph.pool()
        return graph, found

    def _decode(self, numbers: _Numbers) -> tuple[Tensor, PagedBatch]:
        paged = PagedBatch(self._store, numbers.slots, decoding=numbers.decoding, prefilling=None)
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

    def _run(self, work: ForwardBatch, ids: Tensor | None) -> Tensor:
        """A pass in which some calls compute several tokens; those with one go first."""
        device = self._network.device
        counts = np.diff(work.starts)
        order = np.argsort(counts > 1, kind="stable")
        single, several = np.split(order, [int((counts == 1).sum())])
        rows = np.concatenate([np.arange(work.starts[c], work.starts[c + 1]) for c in order])
        ends = np.cumsum(counts[order]) - 1
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        paged = PagedBatch(
            self._store,
            _on(work.slots[rows], device),
            decoding=self._decoding(work, single) if len(single) else None,
            prefilling=self._prefilling(work, several) if len(several) else None,
        )
        # Ids that are given come one for each call, and then rows are calls in their order.
        ids = _on(work.ids[rows], device) if ids is None else ids
        hidden = self._hidden(ids, _on(work.positions[rows], device), paged)
        last = hidden.index_select(0, _on(ends[place[work.wanted]], device))
        return last @ self._network.head.T

    def _decoding(self, work: ForwardBatch, calls: Indices) -> DecodeBatch:
        device = self._network.device
        return DecodeBatch(
            blocks=_on(work.blocks[calls], device, np.int32),
            lengths=_on(work.lengths[calls], device, np.int32),
        )

    def _prefilling(self, work: ForwardBatch, calls: Indices) -> PrefillBatch:
        device = self._network.device
        counts, lengths = np.diff(work.starts)[calls], work.lengths[calls]
        slots = [
            (work.blocks[call][:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).ravel()[:length]
            for call, length in zip(calls, lengths, strict=True)
        ]
        zero = np.zeros(1, dtype=np.int32)
        return PrefillBatch(
            queries=_on(np.concatenate([zero, np.cumsum(counts)]), device, np.int32),
            keys=_on(np.concatenate([zero, np.cumsum(lengths)]), device, np.int32),
            slots=_on(np.concatenate(slots), device),
            most_queries=int(counts.max()),
            most_keys=int(lengths.max()),
        )


@cache
def _capturing(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs, because matrix products keep memory for every stream they are used on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _sampled(logits: Tensor, draws: BatchSampling) -> tuple[Tensor, Tensor]:
    """What `sample_packed` gives, but for rounding."""
    return (
        sample_packed(logits, draws) if draws.is_cut else packed(*_weighing().sample(logits, draws))
    )


@cache
def _weighing() -> Any:
    # Triton, which it is written in, comes with torch for CUDA and with no other.
    return import_module("gyre.inference.engine.triton_kernels")


def _on(values: Indices, device: torch.device, dtype: type[np.integer] = np.int64) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype)).to(device, non_blocking=True)
