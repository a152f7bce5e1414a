"""Commands of a cell's driver to its other ranks, and their replies, as lines of JSON.

What cells do together, every rank is told as the cell was: by the requests of `cell/protocol.py`.
What comes from other cells is staged on each rank, until all have it: then it is committed.
"""

from typing import TypeAlias

import msgspec

from gyre.cell.protocol import (
    BroadcastRequest,
    ErrorReply,
    ExposedWeights,
    FormGroupsRequest,
    ReduceRequest,
    StepRequest,
)
from gyre.model.checkpoint_store import Shard
from gyre.types.protocols import TensorBundle
from gyre.types.training import StepReport


class ReloadCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The trainer has its memory again."""


class OffloadCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The trainer's memory is free, that of its weights too."""


class ClearCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The sum is empty."""


class StreamCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Micro-steps come over the cell's lines until the driver closes the stream."""


class PullCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Weights that another cell exposed are read and staged."""

    given: ExposedWeights


class CommitCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What is staged takes the place of the weights or of the sum."""


class AbortCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What is staged is dropped."""


class ExposeCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This rank's weights can be read by others; done beside everything else."""


class CopyCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """This rank's state of a version is copied into main memory; done beside everything else."""

    version: int


class WriteShardCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was copied of the weights becomes a file in the shared folder."""


class WriteOptimizerCommand(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What was copied of the optimizer becomes files of a checkpoint."""

    folder: str


BESIDE = (CopyCommand, WriteShardCommand, WriteOptimizerCommand)
"""Orders that concern what was copied, and wait for nothing but each other."""


RankCommand: TypeAlias = (
    ReloadCommand
    | OffloadCommand
    | ClearCommand
    | StreamCommand
    | FormGroupsRequest
    | ReduceRequest
    | BroadcastRequest
    | StepRequest
    | PullCommand
    | CommitCommand
    | AbortCommand
    | ExposeCommand
    | CopyCommand
    | WriteShardCommand
    | WriteOptimizerCommand
)


class RankRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An order, and the number under which it is answered."""

    number: int
    order: RankCommand


class RankReply(msgspec.Struct):
    """What came of an order; fields that do not concern it are absent."""

    number: int
    version: int
    """Of the rank's weights."""
    num_bytes: int = 0
    """That went to other cells."""
    report: StepReport | None = None
    part: Shard | None = None
    """Of what was copied."""
    bundle: TensorBundle | None = None
    """That others can read."""
    files: tuple[Shard, ...] = ()
    """Of a checkpoint."""
    num_steps: int = 0
    """Of the optimizer whose state they hold."""
    copied_s: float = 0.0
    """That copying its state took."""
    refusal: ErrorReply | None = None


READY = 0
"""Number of the answer that comes without an order: the rank has its weights."""
