"""Settings, one frozen section per room that reads it; a field has one default, here."""

from dataclasses import dataclass


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
