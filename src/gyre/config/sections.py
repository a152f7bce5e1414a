"""Config dataclasses of single components (engine, trainer, loss, proxy, router...)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """How calls find engines and outlive them."""

    capacity: Count = 64
    """Calls at once per engine (C_e); more wait."""
    hold_s: NotNegative = 1800.0
    """How long a call waits for any engine before it is refused as retryable."""
    idle_s: Seconds = 10.0
    """Silence after which an engine's health is asked; without an answer in half of it, a hang."""
    retry_first_s: Seconds = 0.05
    """First back-off after a failed attempt; doubles, with jitter, up to retry_most_s."""
    retry_most_s: Seconds = 5.0
    """Longest back-off after failed attempts."""
    break_after: Count = 3
    """Consecutive failures after which an engine gets no calls until a probe succeeds."""
    probe_s: Seconds = 1.0
    """Pause between health probes of an engine that is broken or silent."""
    kv_s: NotNegative = 10.0
    """How long each part of handing cached blocks over may take (SPEC 2.3); 0: they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """What one client may ask of the proxy."""

    body_bytes: Count = 32 * 2**20
    """Largest body of a request."""
    messages: Count = 20_000
    """Most messages of one request."""
    tools: Count = 1_024
    """Most tools of one request."""
    calls_per_execution: Count = 64
    """Calls of one execution in flight at once."""
    calls_per_minute: Count = 6_000
    """Calls of one execution within any minute."""
    body_s: Seconds = 60.0
    """A request body must arrive within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Where the proxy listens and what it promises clients."""

    host: Text = "127.0.0.1"
    """Address to listen on; the default is reached from this machine only."""
    port: Port = 8400
    """Where to listen; 0 picks a free one."""
    context_tokens: Count = 131_072
    """The model's window; a prompt that leaves no room for one token is refused (SPEC 4.6)."""
    ping_s: Seconds = 10.0
    """Pause between pings of a stream that waits for its reply."""
    honour_sampling: bool = False
    """Use the harness's own temperature and top-p instead of the run's (SPEC 4.6); only to record,
    because a run that trains refuses it."""
    alone_s: Seconds = 43_200.0
    """How long the proxy of a training run waits for a controller to resume it; then it ends."""
    shards: Count = 1
    """Processes that a training run's proxy consists of; port counts up from the first one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much an engine holds and how it takes turns."""

    capacity: Count = 64
    """Calls that run at once (C_e); more wait."""
    kv_tokens: Count | None = None
    """Tokens whose keys and values fit at once; not set: what the device's memory allows."""
    prefill_tokens: Count = 4096
    """Most prompt tokens computed in one pass, so that running calls are not held up."""
    block_tokens: Count | None = None
    """Tokens of one cache block; not set: 128 on CUDA, 16 elsewhere."""
    graphs: bool = True
    """On CUDA, replay decoding as captured graphs."""


SERVERS = ("vllm", "sglang")
"""Engines that a cell starts as servers of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How a cell starts its own vLLM or SGLang."""

    python: Text | None = None
    """Interpreter of the environment that it is installed in; not set: the one Gyre runs in."""
    args: tuple[str, ...] = ()
    """Arguments of its command, after those that Gyre gives."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the cell; no place for secrets."""
    start_s: Seconds = 240.0
    """How long it may take until it answers."""
    weights: Literal["disk", "memory"] = "disk"
    """How it gets new ones: it reads a checkpoint's folder, or the cell hands them over."""


CLIP_BOUNDS = {"gyre": (0.995, 1.005), "grpo": (0.8, 1.2), "gspo": (1 - 3e-4, 1 + 4e-4)}
"""Of each kind of objective, as its authors give them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The loss of one step (SPEC 8.1, 8.2)."""

    kind: Literal["gyre", "grpo", "gspo"] = "gyre"
    """The paper's loss, or one of two to compare it with (SPEC 8.4)."""
    clip_low: Positive | None = None
    """Ratio below which a negative advantage has no gradient; not set: the kind's own."""
    clip_high: Positive | None = None
    """Ratio above which a positive advantage has no gradient; not set: the kind's own."""
    ratio_cap: Positive = 5.0
    """Most that a token's ratio weighs (SPEC 8.2)."""
    loss_cap: Positive = 100.0
    """Most that the loss of one token may be (SPEC 8.2)."""
    divide_by_std: bool = True
    """Divide advantages by the deviation of their group's rewards (SPEC 8.1)."""
    shuffle_rewards: bool = False
    """Deal the rewards of each group out by chance: a control, in which nothing can be learned."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest ratio; an execution's, a target's (grpo) or a sequence's (gspo)."""
        low, high = CLIP_BOUNDS[self.kind]
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Adam and what surrounds it (SPEC 8.4)."""

    lr: NotNegative = 1e-6
    """Learning rate, constant."""
    beta1: Decay = 0.9
    """Decay of the mean of gradients."""
    beta2: Decay = 0.95
    """Decay of the mean of their squares."""
    eps: Positive = 1e-15
    """Added to the root of that mean."""
    weight_decay: NotNegative = 0.01
    """Part of a weight that a step at a learning rate of 1 would take away."""
    max_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """How a cell computes gradients."""

    kind: Literal["torch", "megatron"] = "torch"
    """Whose layers compute: those of transformers, or Megatron-core's with the same weights."""
    pack_tokens: Count = 16_384
    """Most tokens of one micro-step."""
    claim_packs: Count = 4
    """Micro-steps that a cell claims at once; an execution that needs more is claimed alone."""
    checkpoint: bool = True
    """Keep only each layer's input, and compute the layer again for the backward pass."""
    logits_tokens: Count = 2_048
    """Targets whose logits exist at once."""
    deterministic: bool = False
    """Exact sums and deterministic kernels: equal bits however a batch is split (SPEC 3.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """A model that judges by a task's rubric, behind any endpoint that speaks as OpenAI's does."""

    url: Text
    """Where it is, with its version: https://host/v1."""
    model: Text
    """What the endpoint calls it."""
    key_env: Text | None = None
    """Environment variable with the endpoint's key; not set: it needs none."""
    calls: Count = 20
    """Most calls of one judgement."""
    tokens: Count = 400_000
    """Most tokens of one judgement, prompts and replies together, as the endpoint counts them."""
    reply_tokens: Count = 4_096
    """Most tokens of one reply."""
    show_bytes: Count = 200_000
    """Most bytes of files that it is shown at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """How weights and cached blocks get from one cell to another."""

    kind: Literal["shared", "cuda", "tcp", "mooncake"] = "shared"
    """Files in a folder that all cells see, memory that cells of one machine lend each other on
    their GPUs, sockets, or the Transfer Engine of Mooncake."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """What the Transfer Engine moves bytes by."""
    devices: str = ""
    """Network devices of the Transfer Engine with commas between them, as mlx5_0; empty: all."""
    timeout_s: Seconds = 60.0
    """A peer that is silent for so long during a read over sockets is gone."""
