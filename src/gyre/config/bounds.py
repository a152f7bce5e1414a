"""Bounds that a setting's type carries, for whoever reads its value from outside."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a number lies; what is None does not bound it."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Text with a letter in it, or a list with an item."""


Count = Annotated[int, Bounds(least=1)]
CountOrNone = Annotated[int, Bounds(least=0)]
"""A count that may be 0."""
Several = Annotated[int, Bounds(least=2)]
Port = Annotated[int, Bounds(least=0, most=65_535)]
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(least=0)]
Batches = Annotated[float, Bounds(least=0, most=1_000_000)]
"""Far more than any run has, so that a product with it stays a number."""
Seconds = Annotated[float, Bounds(above=0)]
Share = Annotated[float, Bounds(above=0, most=1)]
Fraction = Annotated[float, Bounds(least=0, most=1)]
Factor = Annotated[float, Bounds(least=1)]
Decay = Annotated[float, Bounds(least=0, below=1)]
"""What is left of a running mean after one step."""
Text = Annotated[str, NonEmpty()]
Words = Annotated[tuple[str, ...], NonEmpty()]
