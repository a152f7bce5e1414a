"""What takes time beside executions: training, switches, pulls, updates, publications."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from gyre.simulator.durations import HOUR_S
from gyre.simulator.workload import SimulatedExecution
from gyre.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSize:
    """A claim that is only a size."""

    groups: float
    """The part of a group that it holds."""
    tokens: float


def sizes(executions: Sequence[SimulatedExecution], *, per_claim: int) -> tuple[ClaimSize, ...]:
    """A group as claims of whole executions, `per_claim` of them each."""
    if per_claim < 1:
        raise ConfigError(f"executions per claim: at least 1, not {per_claim}")
    parts = [executions[at : at + per_claim] for at in range(0, len(executions), per_claim)]
    return tuple(
        ClaimSize(groups=len(part) / len(executions), tokens=sum(one.tokens for one in part))
        for part in parts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ByGroups:
    """Every group costs the same."""

    groups_per_node_hour: float

    def seconds(self, size: ClaimSize, *, nodes: float) -> float:
        return size.groups / (self.groups_per_node_hour * nodes) * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTokens:
    """Cost follows tokens."""

    tokens_per_node_s: float

    def seconds(self, size: ClaimSize, *, nodes: float) -> float:
        return size.tokens / (self.tokens_per_node_s * nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What takes time beside executions."""

    training: ByGroups | ByTokens
    into_training_s: float = 0.0
    """A cell's switch from serving."""
    out_of_training_s: float = 0.0
    pull_s: float = 0.0
    """A satellite's copy of the core's weights."""
    update_s: float = 0.0
    """Gradients summed and the optimizer's step."""
    publication_s: float = 0.0

    def __post_init__(self) -> None:
        times = (self.into_training_s, self.out_of_training_s, self.pull_s, self.update_s)
        if not all(isfinite(one) and one >= 0 for one in (*times, self.publication_s)):
            raise ConfigError(f"costs: finite and not below 0, not {self}")


NL2REPO_122B_COSTS = Costs(
    training=ByGroups(groups_per_node_hour=2.5), into_training_s=8.52, out_of_training_s=3.46
)
"""Switching times as published; training fitted."""
