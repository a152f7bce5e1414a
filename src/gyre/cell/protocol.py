"""Requests to a cell and its ranks, and their replies, each defined once and without torch.

A request is the body of an HTTP request, whose path says which it is; those with a tag also go
from a cell's driver to its other ranks as they are (`cell/ranks/protocol.py`).
"""

from dataclasses import dataclass

import msgspec

from gyre.types import errors
from gyre.types.errors import BoundaryError, CellError, GyreError
from gyre.types.protocols import IpcHandle, TensorBundle
from gyre.types.training import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedWeights:
    """Weights that a cell holds for others to read."""

    version: int
    parts: tuple[TensorBundle, ...] = ()
    """By rank; the cell that takes them puts together what it needs of all of them."""
    lent: IpcHandle | None = None
    """In place of parts: where they lie on a device, in the order of their names."""

    @property
    def num_bytes(self) -> int:
        there = 0 if self.lent is None else self.lent.num_bytes
        return there + sum(part.num_bytes for part in self.parts)


class LeaveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The cell goes home, with its sum if it will come back to the same batch (SPEC 2.5)."""

    keep_sum: bool = False


class FormGroupsRequest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Process groups for the cells of an epoch in their order."""

    epoch: int
    order: list[int]


class ReduceRequest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Sums go to the first member, each of exactly these leases."""

    epoch: int
    members: list[int]
    leases: dict[int, list[int]]


class StepRequest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The cell's sum is clipped and applied to this version."""

    version: int


class BroadcastRequest(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The first member's weights, of this version, go to the others."""

    epoch: int
    members: list[int]
    version: int


class SaveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The trainer's weights, or all of its state, are durable in a folder."""

    folder: str
    version: int | None = None
    """Which they must be; none: whichever the trainer has."""


class SavedCheckpoint(msgspec.Struct):
    """A checkpoint that a core has written."""

    digest: str
    """Of the weights."""
    seconds: float
    """From the order until it was on the disk."""
    num_bytes: int
    has_optimizer: bool = False
    stalled_s: float = 0.0
    """That training stood still for it."""
    copied_s: float = 0.0
    """That copying into main memory took, beside the training."""


class LoadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The engine takes a checkpoint's weights, which have this digest."""

    folder: str
    version: int
    digest: str
    keep_kv: bool = False
    given: ExposedWeights | None = None
    """Where another cell holds them, to be read in place of the folder."""


class LoadedWeights(msgspec.Struct):
    """Weights that an engine has taken."""

    digest: str
    seconds: float


class CellHealth(msgspec.Struct):
    """A cell's answer to a health poll."""

    engine_ready: bool
    engine_version: int | None
    trainer_version: int | None
    claims_at_once: int = 1
    """Claims that it works on together."""


class OfferRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A checkpoint's weights are held in memory for engines of other cells."""

    folder: str
    version: int


class ClaimHeader(msgspec.Struct, forbid_unknown_fields=True):
    """What comes with a claim, in a header."""

    lease: int
    num_executions: int
    scores: list[Score] | None = None


class ScoreReply(msgspec.Struct):
    """What forward passes found of a claim, per share."""

    scores: tuple[Score, ...]


class ReduceReply(msgspec.Struct):
    """What a cell has sent to the first member."""

    num_bytes: int


def body_of(request: msgspec.Struct) -> bytes:
    """The body of an HTTP request, without its tag."""
    return msgspec.json.encode(msgspec.structs.asdict(request))


ABOUT = "x-gyre-claim"
"""The header with it, in JSON."""


class ErrorReply(msgspec.Struct):
    """An error by the name of its type, from which the other side makes it again."""

    kind: str
    message: str
    retryable: bool


def refusal(error: GyreError) -> ErrorReply:
    retryable = error.retryable if isinstance(error, BoundaryError) else False
    return ErrorReply(kind=type(error).__name__, message=str(error), retryable=retryable)


def made(refused: ErrorReply, where: str) -> CellError:
    """The error as it was raised there, if it is of a kind that passes between processes."""
    kind = getattr(errors, refused.kind, CellError)
    if not (isinstance(kind, type) and issubclass(kind, CellError)):
        kind = CellError
    return kind(f"{where}: {refused.message}", retryable=refused.retryable)
