"""One value per parameter, kept in a few flat tensors that can leave the device and come back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gyre.types.errors import CellError

BUCKET_VALUES = 2**26
"""Values of one flat tensor: enough for a reduction to run at full speed, little as scratch."""


class Buckets:
    """Zeros at first, in the order of `shapes`; every view shares memory with its flat tensor."""

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        *,
        dtype: torch.dtype,
        device: torch.device,
        bucket_values: int = BUCKET_VALUES,
    ) -> None:
        self._shapes = dict(shapes)
        self._dtype = dtype
        self._device = device
        self._groups = _groups(self._shapes, bucket_values)
        self._away: list[Tensor] | None = None
        # Kept once made, because pinning memory takes longer than copying into it.
        self._pinned: list[Tensor] = []
        self._flats: list[Tensor] | None = self._new(device)
        self._views = self._make_views(self._flats)

    @property
    def flats(self) -> list[Tensor]:
        """The flat tensors; a parameter larger than a bucket has one of its own."""
        if self._flats is None:
            raise CellError("the trainer's state rests in host memory: restore it first")
        return self._flats

    @property
    def views(self) -> Mapping[str, Tensor]:
        """By parameter, in the parameter's shape."""
        if self._flats is None:
            raise CellError("the trainer's state rests in host memory: restore it first")
        return self._views

    @property
    def values(self) -> Mapping[str, Tensor]:
        """As `views`, wherever they are now, for who only reads them."""
        if self._flats is not None:
            return self._views
        away = self._new(torch.device("cpu")) if self._away is None else self._away
        return self._make_views(away)

    @property
    def is_resting(self) -> bool:
        return self._flats is None

    def zero(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def offload(self, *, copied: bool = True) -> None:
        """Device memory is let go; copies begun here are complete once the device is idle.

        Without a copy the values are zeros when they come back.
        """
        if self._flats is None:
            return
        self._away = self._to_host(self._flats) if copied else None
        self._flats = None
        self._views = {}

    def reload(self) -> None:
        """Back on the device; if it has no room, everything stays where it rests."""
        if self._flats is not None:
            return
        flats = self._new(self._device) if self._away is None else self._from_host(self._away)
        self._flats = flats
        self._views = self._make_views(flats)

    def _to_host(self, flats: list[Tensor]) -> list[Tensor]:
        if self._device.type == "cpu":
            return flats
        if not self._pinned:
            self._pinned = self._new(torch.device("cpu"), pinned=True)
        for host, flat in zip(self._pinned, flats, strict=True):
            host.copy_(flat, non_blocking=True)
        return self._pinned

    def _from_host(self, hosts: list[Tensor]) -> list[Tensor]:
        if self._device.type == "cpu":
            return hosts
        flats = self._new(self._device)
        for host, flat in zip(hosts, flats, strict=True):
            flat.copy_(host, non_blocking=True)
        return flats

    def _new(self, device: torch.device, *, pinned: bool = False) -> list[Tensor]:
        sizes = [sum(self._shapes[name].numel() for name in group) for group in self._groups]
        return [
            torch.zeros(size, dtype=self._dtype, device=device, pin_memory=pinned) for size in sizes
        ]

    def _make_views(self, flats: list[Tensor]) -> dict[str, Tensor]:
        views: dict[str, Tensor] = {}
        for group, flat in zip(self._groups, flats, strict=True):
            parts = torch.split(flat, [self._shapes[name].numel() for name in group])
            for name, part in zip(group, parts, strict=True):
                views[name] = part.view(self._shapes[name])
        return views


def _groups(shapes: Mapping[str, torch.Size], most: int) -> list[list[str]]:
    groups: list[list[str]] = []
    room = 0
    for name, shape in shapes.items():
        if not groups or shape.numel() > room:
            groups.append([])
            room = most
        groups[-1].append(name)
        room -= shape.numel()
    return groups
