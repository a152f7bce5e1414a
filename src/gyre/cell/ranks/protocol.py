"""What the driver of a cell tells its other ranks, and what they answer, as lines of JSON."""

from typing import TypeAlias

import msgspec

from gyre.cell.protocol import Refusal
from gyre.model.manifest import Shard
from gyre.types.transfers import Bundle


class Restore(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The trainer has its memory again."""


class Rest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The trainer's memory is free, that of its weights too."""


class Clear(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The sum is empty."""


class Stream(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Micro-steps come over the cell's lines until the driver closes the stream."""


class Meet(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Groups for the cells of an epoch in their order."""

    epoch: int
    order: list[int]


class Reduce(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Sums go to the first member, which has theirs only when it is told to take it."""

    epoch: int
    members: list[int]


class Spread(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The first member's weights go to the others, which have them when they are told to."""

    epoch: int
    members: list[int]
    version: int


class Pull(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Weights that another cell exposed are read; this rank has them when it is told to."""

    parts: list[Bundle]
    version: int


class Take(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was read or summed last takes its place."""


class Forget(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was read or summed last is gone."""


class Step(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The cell's sum is clipped and applied."""


class Expose(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This rank's weights can be read by others; done beside everything else."""


class Copy(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This rank's state of a version is copied into main memory; done beside everything else."""

    version: int


class Lay(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was copied of the weights becomes a file in the shared folder."""


class Keep(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was copied of the optimizer becomes files of a checkpoint."""

    folder: str


BESIDE = (Copy, Lay, Keep)
"""Orders that concern what was copied, and wait for nothing but each other."""


Order: TypeAlias = (
    Restore
    | Rest
    | Clear
    | Stream
    | Meet
    | Reduce
    | Spread
    | Pull
    | Take
    | Forget
    | Step
    | Expose
    | Copy
    | Lay
    | Keep
)


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """An order, and the number under which it is answered."""

    number: int
    order: Order


class Answer(msgspec.Struct):
    """What came of an order; whatever does not concern it is absent."""

    number: int
    version: int
    """Of the rank's weights."""
    num_bytes: int = 0
    """That went to other cells."""
    part: Shard | None = None
    """Of what was copied."""
    bundle: Bundle | None = None
    """That others can read."""
    files: tuple[Shard, ...] = ()
    """Of a checkpoint."""
    num_steps: int = 0
    """Of the optimizer whose state they hold."""
    copied_s: float = 0.0
    """That copying its state took."""
    refusal: Refusal | None = None


READY = 0
"""Number of the answer that nobody asked for: the rank has its weights."""
