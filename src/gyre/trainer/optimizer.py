"""Adam on wide copies of the weights, and what a step does around it (SPEC 8.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from gyre.config.sections import OptimizerConfig
from gyre.trainer.gradients import Buckets, wide
from gyre.types.errors import ModelError

MASTER, FIRST, SECOND = "master", "first_moment", "second_moment"
"""Prefixes of names in an exported state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """All that the next step depends on besides its gradient."""

    num_steps: int
    tensors: Mapping[str, Tensor]
    """By "<kind>/<parameter>", kind one of master, first_moment and second_moment."""


def norm(gradients: Iterable[Tensor]) -> float:
    """Euclidean, over all of them, in float64."""
    parts = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in gradients]
    return float(torch.stack(parts).norm())


class Adam:
    """AdamW over the parameters given: masters and two moments, in the sums' type.

    The arithmetic is that of torch.optim.AdamW, value for value.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], section: OptimizerConfig) -> None:
        self.section = section
        self.num_steps = 0
        self._parameters = dict(parameters)
        first = next(iter(parameters.values()))
        shapes = {name: one.shape for name, one in parameters.items()}
        self._kinds = {
            kind: Buckets(shapes, dtype=wide(first.dtype), device=first.device)
            for kind in (MASTER, FIRST, SECOND)
        }
        self.read(parameters)

    @property
    def masters(self) -> Mapping[str, Tensor]:
        return self._kinds[MASTER].views

    @torch.no_grad()
    def read(self, weights: Mapping[str, Tensor]) -> None:
        """Masters become these weights, unrounded; parameters are left as they are."""
        for name, master in self.masters.items():
            master.copy_(weights[name])

    @torch.no_grad()
    def write_parameters(self) -> None:
        """Parameters become the masters, rounded."""
        for name, master in self.masters.items():
            self._parameters[name].copy_(master)

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor], *, scale: float = 1.0) -> None:
        """One update by flat gradients times `scale`, which are changed on the way."""
        masters, firsts, seconds = (self._kinds[kind].flats for kind in (MASTER, FIRST, SECOND))
        # Made before anything changes, so that a device without room leaves everything as it was.
        scratch = torch.empty_like(max(masters, key=Tensor.numel))
        self.num_steps += 1
        for master, first, second, gradient in zip(
            masters, firsts, seconds, gradients, strict=True
        ):
            gradient.mul_(scale)
            self._update(master, first, second, gradient, scratch[: master.numel()])
        self.write_parameters()

    def _update(
        self, master: Tensor, first: Tensor, second: Tensor, gradient: Tensor, scratch: Tensor
    ) -> None:
        section = self.section
        correction1 = 1 - section.beta1**self.num_steps
        correction2 = 1 - section.beta2**self.num_steps
        master.mul_(1 - section.lr * section.weight_decay)
        first.lerp_(gradient, 1 - section.beta1)
        second.mul_(section.beta2).addcmul_(gradient, gradient, value=1 - section.beta2)
        torch.sqrt(second, out=scratch)
        scratch.div_(sqrt(correction2)).add_(section.eps)
        master.addcdiv_(first, scratch, value=-section.lr / correction1)

    def export(self) -> OptimizerState:
        """The state itself, at rest or not, and no copy: it changes with the next step."""
        held = {kind: buckets.values for kind, buckets in self._kinds.items()}
        return OptimizerState(num_steps=self.num_steps, tensors=_named(held))

    @torch.no_grad()
    def load(self, state: OptimizerState) -> None:
        """Becomes what was exported, parameters included; refused whole when anything differs."""
        mine = _named({kind: buckets.views for kind, buckets in self._kinds.items()})
        require_same(mine, state.tensors, "optimizer state")
        for name, view in mine.items():
            view.copy_(state.tensors[name])
        self.num_steps = state.num_steps
        self.write_parameters()

    def offload(self) -> None:
        for buckets in self._kinds.values():
            buckets.offload()

    def reload(self) -> None:
        for buckets in self._kinds.values():
            buckets.reload()


def _named(kinds: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{kind}/{name}": one for kind, views in kinds.items() for name, one in views.items()}


def require_same(mine: Mapping[str, Tensor], given: Mapping[str, Tensor], what: str) -> None:
    """Names and shapes are the same and every value is a number, or ModelError says what is not."""
    missing, unknown = mine.keys() - given.keys(), given.keys() - mine.keys()
    if missing or unknown:
        found = f"{len(missing)} names missing, {len(unknown)} unknown"
        raise ModelError(f"{what}: {found}, the first is {min(missing or unknown)!r}")
    for name, view in mine.items():
        if view.shape != given[name].shape:
            shapes = f"shape {tuple(given[name].shape)} where {tuple(view.shape)} belongs"
            raise ModelError(f"{what}: {name!r} has {shapes}")
        if not bool(torch.isfinite(given[name]).all()):
            raise ModelError(f"{what}: {name!r} holds values that are no numbers")
