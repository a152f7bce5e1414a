"""Prometheus counters."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RouterCounts:
    """The router's counts since the proxy started."""

    calls: int = 0
    attempts: int = 0
    reroutes: int = 0
    """Attempts that continued a call elsewhere, or again at the same engine."""
    failures: dict[str, int] = field(default_factory=dict)
    """By kind: refused, error, abort, bad request, hang, stall. To drain is no failure."""
    breaker_opens: int = 0
    unavailable: int = 0
    """Calls given up because no engine came back in time."""
    held_s: float = 0.0
    midway: int = 0
    """Calls that were sent elsewhere with tokens sampled already."""
    hand_overs: int = 0
    """Calls whose cached blocks followed them."""
    lost_hand_overs: int = 0
    """Calls whose blocks should have, and did not in time."""
    carried_bytes: int = 0
    carried_tokens: int = 0
    again_tokens: int = 0
    """Tokens that calls had when they moved, and that did not follow them: computed again, unless
    the engine knew them already."""


CALL_S_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(slots=True)
class Histogram:
    """How often a quantity fell under each bound."""

    bounds: tuple[float, ...] = CALL_S_BUCKETS
    counts: list[int] = field(default_factory=lambda: [0] * len(CALL_S_BUCKETS))
    total: float = 0.0
    number: int = 0

    def observe(self, value: float) -> None:
        self.number += 1
        self.total += value
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += 1


@dataclass(slots=True)
class ProxyMetrics:
    """Everything counted since the proxy started."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By dialect and HTTP status."""
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Recorded calls by role and harness."""
    forks: Counter[str] = field(default_factory=Counter)
    """Recorded calls that do not simply extend an earlier one, by reason."""
    flags: Counter[str] = field(default_factory=Counter)
    probes: int = 0
    counted: int = 0
    """Answers to count_tokens."""
    undelivered: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    call_s: Histogram = field(default_factory=Histogram)


def text(metrics: ProxyMetrics, gauges: Iterable[tuple[str, str, str, float]]) -> bytes:
    """Prometheus exposition; gauges are (name, help, labels, value), grouped by name."""
    lines = [*_counters(metrics), *_histogram(metrics.call_s)]
    described: set[str] = set()
    for name, meaning, labels, value in gauges:
        if name not in described:
            described.add(name)
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines.append(f"{name}{labels} {value:g}")
    return ("\n".join(lines) + "\n").encode()


def labels(**values: str | int) -> str:
    """Prometheus labels, values escaped."""
    inner = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items())
    return "{" + inner + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _counters(metrics: ProxyMetrics) -> Iterator[str]:
    yield from _family(
        "gyre_requests_total",
        "HTTP requests answered, by dialect and status.",
        [(labels(dialect=d, status=s), n) for (d, s), n in sorted(metrics.requests.items())],
    )
    yield from _family(
        "gyre_calls_total",
        "Calls recorded, by role and harness.",
        [(labels(role=r, harness=h), n) for (r, h), n in sorted(metrics.calls.items())],
    )
    yield from _family(
        "gyre_forks_total",
        "Recorded calls that do not extend an earlier one, by reason.",
        [(labels(reason=r), n) for r, n in sorted(metrics.forks.items())],
    )
    yield from _family(
        "gyre_flags_total",
        "Defects of recorded calls.",
        [(labels(flag=f), n) for f, n in sorted(metrics.flags.items())],
    )
    for name, meaning, value in (
        ("gyre_probes_total", "Probes answered and not recorded.", metrics.probes),
        ("gyre_token_counts_total", "Token counts answered.", metrics.counted),
        ("gyre_undelivered_total", "Replies whose client had gone.", metrics.undelivered),
        ("gyre_prompt_tokens_total", "Prompt tokens sent to engines.", metrics.prompt_tokens),
        ("gyre_reused_tokens_total", "Prompt tokens taken from trees.", metrics.reused_tokens),
        ("gyre_output_tokens_total", "Tokens sampled.", metrics.output_tokens),
    ):
        yield from _family(name, meaning, [("", value)])


def _family(name: str, meaning: str, samples: list[tuple[str, int]]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} counter"
    for label, value in samples:
        yield f"{name}{label} {value}"


def _histogram(histogram: Histogram) -> Iterator[str]:
    name = "gyre_call_seconds"
    yield f"# HELP {name} Time from a call's acceptance to its reply."
    yield f"# TYPE {name} histogram"
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        yield f"{name}_bucket{labels(le=f'{bound:g}')} {count}"
    yield f"{name}_bucket{labels(le='+Inf')} {histogram.number}"
    yield f"{name}_sum {histogram.total:g}"
    yield f"{name}_count {histogram.number}"
