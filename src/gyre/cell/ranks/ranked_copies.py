"""Copies of a cell of several ranks: each has its own, and the driver puts them together."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from gyre.cell.ranks import protocol as rank_orders
from gyre.cell.ranks.rank_weights import read_shard
from gyre.cell.ranks.ranked_crew import RankGroup
from gyre.cell.saving import CopyCost, WrittenState
from gyre.model.checkpoint import Named
from gyre.model.network import Network
from gyre.types.errors import CheckpointError


class GatheredCopies:
    """What all ranks have copied, asked for beside the thread that drives them."""

    def __init__(self, crew: RankGroup, network: Network, *, share: Path) -> None:
        """The network is whole, and tells how parts of its weights were cut."""
        self._crew = crew
        self._shapes = {name: one.shape for name, one in network.module.named_parameters()}
        self._share = share
        self._copied_s = 0.0

    def copy(self, version: int, *, weights_only: bool) -> None:
        """All of it, whichever is asked for: parts of weights are laid from whole copies."""
        answers = self._crew.all(rank_orders.CopyCommand(version=version))
        self._copied_s = max(one.copied_s for one in answers)

    def weights(self) -> Callable[[], Named]:
        parts = []
        for answer in self._crew.all(rank_orders.WriteShardCommand(), for_ever=True):
            assert answer.part is not None
            parts.append(read_shard(self._share, answer.part))
            with suppress(FileNotFoundError):
                (self._share / answer.part.file).unlink()
        named = sorted(joined(parts, self._shapes).items())
        return lambda: named

    def write(self, folder: Path) -> WrittenState:
        answers = self._crew.all(
            rank_orders.WriteOptimizerCommand(folder=str(folder)), for_ever=True
        )
        return WrittenState(
            num_steps=answers[0].num_steps, ranks=tuple(one.files for one in answers)
        )

    def cost(self) -> CopyCost:
        return CopyCost(stalled_s=self._crew.part.snapshot.stalled_s, copied_s=self._copied_s)


def joined(
    parts: Sequence[Mapping[str, Tensor]], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The weights of a whole model, from those of its ranks in their order.

    What several ranks hold in full is taken from the first, and what the model knows by another
    name, as the last stage its tied head, from the stage that has it under its own.
    """
    return {name: _whole(name, parts, shape) for name, shape in shapes.items()}


def _whole(name: str, parts: Sequence[Mapping[str, Tensor]], shape: torch.Size) -> Tensor:
    held = [one[name] for one in parts if name in one]
    if held and held[0].shape == shape:
        return held[0]
    if held and held[0].dim() == len(shape):
        cut = [dim for dim, size in enumerate(held[0].shape) if size != shape[dim]]
        whole = torch.cat(held, cut[0]) if len(cut) == 1 else None
        if whole is not None and whole.shape == shape:
            return whole
    found = [tuple(one.shape) for one in held]
    message = f"{name}: expected parts of shape {tuple(shape)}, found {found}"
    raise CheckpointError(message, retryable=False)
