"""Objects that compiled code knows by a number, for as long as somebody else holds them."""

import itertools
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """The objects behind one operator's handles."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._held: WeakValueDictionary[int, T] = WeakValueDictionary()

    def enter(self, one: T) -> Tensor:
        """Its handle: a tensor, because compiled code takes a number as a constant."""
        number = next(self._numbers)
        self._held[number] = one
        return torch.tensor(number)

    def __getitem__(self, handle: Tensor) -> T:
        return self._held[int(handle)]
