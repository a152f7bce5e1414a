"""How much a trainer computes for a claim and how long it takes."""

from time import perf_counter

from gyre.model.network import ModelDims
from gyre.model.packed_batch import PackedBatch
from gyre.trainer.room import synchronize
from gyre.types.reports import Work

BACKWARD = 2.0
"""A backward pass multiplies each matrix twice where the forward pass does once."""


class WorkMeter:
    """Counts from its making on; every interval belongs to the pass that ends it."""

    def __init__(self, shape: ModelDims) -> None:
        self._shape = shape
        self._since = perf_counter()
        self._forward_s = self._backward_s = 0.0
        self._flops = 0.0
        self._forwards: list[PackedBatch] = []
        self._num_backwards = 0

    def forward_done(self, packed: PackedBatch) -> None:
        self._forward_s += self._interval()
        self._flops += self._forward_flops(packed)
        self._forwards.append(packed)

    def backward_done(self, packed: PackedBatch) -> None:
        self._backward_s += self._interval()
        self._flops += BACKWARD * self._forward_flops(packed)
        self._num_backwards += 1

    def work(self) -> Work:
        packs = self._forwards
        return Work(
            num_packs=len(packs),
            num_skipped=len(packs) - self._num_backwards,
            num_tokens=sum(one.pack.num_tokens for one in packs),
            num_padding=sum(one.num_padding for one in packs),
            num_targets=sum(one.num_targets for one in packs),
            model_flops=self._flops,
            forward_s=self._forward_s,
            backward_s=self._backward_s,
        )

    def _forward_flops(self, packed: PackedBatch) -> float:
        pack = packed.pack
        return self._shape.forward_flops(pack.num_tokens, pack.num_targets, pack.num_pairs)

    def _interval(self) -> float:
        synchronize()
        now = perf_counter()
        since, self._since = self._since, now
        return now - since
