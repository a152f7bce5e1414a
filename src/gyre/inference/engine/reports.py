"""What the loop says: of its calls, of itself, and the cached blocks that leave and enter it."""

from dataclasses import dataclass

from torch import Tensor

from gyre.types.errors import EngineError
from gyre.types.sampling import Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """Tokens of one ask, or its end, or both."""

    id: str
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """One ask is over without a finish; the others go on."""

    id: str
    error: EngineError


Report = RequestOutput | RequestFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How full an engine is, as it is and not as it would like to be."""

    running: int
    """Calls that are part of passes."""
    most_running: int
    waiting: int
    blocks: int
    available_blocks: int
    """Blocks that nobody holds; those with a findable prefix count, because they give way."""
    block_tokens: int
    context_tokens: int
    """Most tokens a call may have, prompt and output together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Cached blocks that stay until the pin is released."""

    id: int
    num_tokens: int
    """How much of what was asked for is held: whole blocks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlocks:
    """Keys and values of a beginning of some call, on their way between engines (SPEC 2.3)."""

    token_ids: bytes
    """int32, little-endian."""
    version: int
    """Of the weights that computed them."""
    values: Tensor
    """(layers, 2, kv_heads, tokens, head_dim), contiguous."""
