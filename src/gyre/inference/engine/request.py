"""One request: admission, progress, reports."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from torch import Tensor

from gyre.inference.engine.sampler import Way, seed_of, way_of
from gyre.inference.engine.scheduler import SequenceState
from gyre.types.errors import EngineError
from gyre.types.sampling import Chunk, GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """New tokens of one request, or its end, or both."""

    id: str
    chunk: Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """One request failed; the others go on."""

    id: str
    error: EngineError


Report = RequestOutput | RequestFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How full an engine is: running and waiting calls, and free blocks."""

    running: int
    """Calls that are part of passes."""
    most_running: int
    waiting: int
    blocks: int
    available_blocks: int
    """Blocks that no call holds; those with a findable prefix count, because they give way."""
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


Decode = Callable[[Sequence[int]], str]
SEAM_TOKENS = 4
"""Tokens decoded before those that a stop string can span: a character may begin in them."""
UNDECODABLE = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(slots=True, eq=False)
class Request:
    """A request that the engine has admitted, with its sequence state."""

    ask: GenerateRequest
    call: SequenceState
    seed: int
    num_prompt: int
    most_tokens: int
    """Output tokens that both the ask and the context leave room for."""
    way: Way
    decode: Decode | None
    is_over: bool = False
    """It has ended, or was ended; a pass that is on its way may still bring it a token."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def num_output(self) -> int:
        return len(self.logprobs)

    @property
    def output_ids(self) -> list[int]:
        return self.call.tokens[self.num_prompt :].tolist()

    @property
    def num_left(self) -> int:
        """Tokens it may still get."""
        return self.most_tokens - len(self.logprobs)

    def seed_after(self, num_unknown: int) -> int:
        """What draws the token that comes `num_unknown` tokens after those it has."""
        return self.seed + len(self.logprobs) + num_unknown

    def take(self, token: int, logprob: float, version: int) -> Chunk:
        """Adds a sampled token; the chunk says it, with the prompt's echo if it is the first."""
        first = not self.logprobs
        self.call.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return Chunk(
            ids=[token],
            logprobs=[logprob],
            version=version,
            finish=self._finish(token),
            prompt_ids=self.call.tokens[: self.num_prompt].tolist() if first else None,
        )

    def so_far(self) -> tuple[Chunk, ...]:
        """Everything sampled, one chunk per version, ended by "abort"."""
        ids, chunks, start = self.output_ids, [], 0
        for version, same in groupby(self.versions):
            end = start + len(list(same))
            chunks.append(
                Chunk(ids=ids[start:end], logprobs=self.logprobs[start:end], version=version)
            )
            start = end
        return (*chunks, Chunk(ids=[], logprobs=[], finish="abort"))

    def _finish(self, token: int) -> str | None:
        sampling = self.ask.sampling
        if token in sampling.stop_ids or (sampling.stop and self._spells_a_stop()):
            return "stop"
        return "length" if len(self.logprobs) >= self.most_tokens else None

    def _spells_a_stop(self) -> bool:
        """Whether the output ends with a stop string, or has one that its last token completed."""
        assert self.decode is not None
        stops = self.ask.sampling.stop
        # A token spells at least one byte, so a longer tail cannot hold the string's end.
        tail = max(len(stop.encode()) for stop in stops) + SEAM_TOKENS
        ids = self.call.tokens[max(self.num_prompt, len(self.call.tokens) - tail) :].tolist()
        try:
            text = self.decode(ids)
        except UNDECODABLE as error:
            message = f"ask {self.ask.id}: its output cannot be read for stop strings: {error}"
            raise EngineError(message, retryable=False) from error
        return any(stop in text for stop in stops)


def admitted(
    ask: GenerateRequest,
    *,
    context_tokens: int,
    vocabulary: int,
    engine_seed: int,
    decode: Decode | None,
) -> Request:
    """The ask as a request; raises EngineError for one that can never be served."""
    tokens = _tokens(ask, vocabulary)
    if len(tokens) >= context_tokens:
        raise refusal(
            ask, f"a prompt of {len(tokens)} tokens leaves no room in a context of {context_tokens}"
        )
    _check(ask, ask.sampling)
    if ask.sampling.stop and decode is None:
        raise refusal(ask, "stop strings need a tokenizer, and this engine was given none")
    seed = ask.sampling.seed
    return Request(
        ask=ask,
        call=SequenceState(id=ask.id, tokens=tokens),
        seed=seed_of(engine_seed, ask.id) if seed is None else seed,
        num_prompt=len(tokens),
        most_tokens=min(ask.sampling.max_tokens, context_tokens - len(tokens)),
        way=way_of(ask.sampling, vocabulary),
        decode=decode,
    )


def refusal(ask: GenerateRequest, found: str) -> EngineError:
    return EngineError(f"ask {ask.id}: {found}", retryable=False)


def _tokens(ask: GenerateRequest, vocabulary: int) -> "array[int]":
    tokens = array("i")
    if not ask.input_ids or len(ask.input_ids) % tokens.itemsize:
        raise refusal(ask, f"expected int32 ids, found {len(ask.input_ids)} bytes")
    tokens.frombytes(ask.input_ids)
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < vocabulary:
            raise refusal(ask, f"id {token} is outside the vocabulary of {vocabulary}")
    return tokens


def _check(ask: GenerateRequest, sampling: SamplingParams) -> None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise refusal(ask, f"temperature: expected 0 or more, found {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise refusal(ask, f"top_p: expected within (0, 1], found {sampling.top_p}")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise refusal(ask, f"top_k: expected 1 or more, found {sampling.top_k}")
    if sampling.max_tokens < 1:
        raise refusal(ask, f"max_tokens: expected 1 or more, found {sampling.max_tokens}")
    if not all(sampling.stop):
        raise refusal(ask, "stop: expected strings that are not empty")
    if sampling.seed is not None and not -(2**63) <= sampling.seed < 2**64:
        raise refusal(ask, f"seed: expected 64 bits, found {sampling.seed}")
