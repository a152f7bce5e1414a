"""Settings, one frozen section per room that reads it; a field has one default, here."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSection:
    """How calls find engines and outlive them."""

    capacity: int = 64
    """Calls at once per engine (C_e); more wait."""
    hold_s: float = 1800.0
    """How long a call waits for any engine before it is refused as retryable."""
    idle_s: float = 10.0
    """Silence after which an engine's health is asked; without an answer in half of it, a hang."""
    retry_first_s: float = 0.05
    """First back-off after a failed attempt; doubles, with jitter, up to retry_most_s."""
    retry_most_s: float = 5.0
    break_after: int = 3
    """Consecutive failures after which an engine gets no calls until a probe succeeds."""
    probe_s: float = 1.0
    """Pause between health probes of an engine that is broken or silent."""
    kv_s: float = 10.0
    """How long each part of handing cached blocks over may take (SPEC 2.3); 0: they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """What one client may ask of the proxy."""

    body_bytes: int = 32 * 2**20
    messages: int = 20_000
    tools: int = 1_024
    calls_per_execution: int = 64
    """Calls of one execution in flight at once."""
    calls_per_minute: int = 6_000
    """Calls of one execution within any minute."""
    body_s: float = 60.0
    """A request body must arrive within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySection:
    """Where the proxy listens and what it promises clients."""

    host: str = "127.0.0.1"
    port: int = 8400
    context_tokens: int = 131_072
    """The model's window; a prompt that leaves no room for one token is refused (SPEC 4.6)."""
    ping_s: float = 10.0
    """Pause between pings of a stream that waits for its reply."""
    honour_sampling: bool = False
    """Use the harness's own temperature and top-p instead of the run's (SPEC 4.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSection:
    """How much the embedded engine holds and how it takes turns."""

    capacity: int = 64
    """Calls that run at once (C_e); more wait."""
    kv_tokens: int | None = None
    """Tokens whose keys and values fit at once; None: what the device's memory allows."""
    prefill_tokens: int = 4096
    """Most prompt tokens computed in one pass, so that running calls are not held up."""
    block_tokens: int | None = None
    """Tokens of one cache block; None: 128 on CUDA, 16 elsewhere."""
    graphs: bool = True
    """On CUDA, replay decoding as captured graphs."""


CLIP_BOUNDS = {"gyre": (0.995, 1.005), "grpo": (0.8, 1.2), "gspo": (1 - 3e-4, 1 + 4e-4)}
"""Of each kind of objective, as its authors give them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSection:
    """The loss of one step (SPEC 8.1, 8.2)."""

    kind: Literal["gyre", "grpo", "gspo"] = "gyre"
    clip_low: float | None = None
    clip_high: float | None = None
    """Bounds of the ratio beyond which there is no gradient; None: the kind's own."""
    ratio_cap: float = 5.0
    loss_cap: float = 100.0
    divide_by_std: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest ratio; an execution's, a target's (grpo) or a sequence's (gspo)."""
        low, high = CLIP_BOUNDS[self.kind]
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSection:
    """Adam and what surrounds it (SPEC 8.4)."""

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-15
    weight_decay: float = 0.01
    max_norm: float = 1.0
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSection:
    """How a cell computes gradients."""

    pack_tokens: int = 16_384
    """Most tokens of one micro-step."""
    checkpoint: bool = True
    """Keep only each layer's input, and compute the layer again for the backward pass."""
    logits_tokens: int = 2_048
    """Targets whose logits exist at once."""
    deterministic: bool = False
    """Same packing, same order of sums, deterministic kernels (SPEC 3.6)."""
