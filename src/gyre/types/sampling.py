"""What engines are asked for and what they answer, in token ids."""

from dataclasses import dataclass, field

from gyre.types.ids import EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn: by the run's settings, not as a harness asks (SPEC 4.6)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    """None: all tokens."""
    max_tokens: int = 8192
    """At most this many new tokens."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the reply; the one sampled is kept as the last output id."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply; the engine keeps the ids that spell them (SPEC 4.1)."""
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request to one engine."""

    id: str
    """Unique among the requests of the proxy; used to abort."""
    input_ids: bytes
    """int32, little-endian: the prompt followed by what was already sampled elsewhere."""
    sampling: SamplingParams
    """With max_tokens already lowered by what was sampled elsewhere."""
    execution: str
    """For engines that keep prefixes per execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some output tokens of one request, in order, as they arrive from an engine."""

    ids: list[int]
    logprobs: list[float] | None
    """One per id, under the distribution sampled from; None when the engine gave none."""
    version: int | None = None
    """Weights version that sampled these ids; None when the engine does not say."""
    finish: str | None = None
    """On the last chunk only: "stop", "length" or "abort"."""
    prompt_ids: list[int] | None = None
    """The engine's echo of the prompt, at most once, on any chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of output tokens from one engine under one version."""

    engine: EngineName
    version: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Everything that was sampled for one call, over however many engines."""

    ids: list[int]
    logprobs: list[float] | None
    """Same length as ids, or None if any engine failed to give them (never zero-filled)."""
    spans: tuple[Span, ...]
    finish: str
    """"stop", "length" or "abort"."""
    echo: list[int] | None = None
    """The prompt ids the first engine said it saw."""
    engine_s: float = 0.0
    """Seconds spent in engines."""
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """What an engine says of itself."""

    ready: bool
    """Whether it takes asks; one that is paused does, and answers them when it goes on."""
    version: int | None = None
    model: str | None = None
    detail: str = field(default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKv:
    """Cached blocks that an engine has laid where others of its kind find them."""

    name: str
    """What they are asked for by."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedKv:
    """Cached blocks that an engine keeps until the proxy releases the pin."""

    pin: int
    """The engine's name for them."""
    tokens: int
