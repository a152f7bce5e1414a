"""The settings that a proxy process is started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.inference.clients.registry import EngineAddress, read_address
from gyre.types.ids import EngineName
from gyre.types.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySpec:
    """The settings of one proxy process, which it reads from its spec file."""

    folder: Path
    model: str
    """Folder with the policy's tokenizer.json, or that file."""
    engines: tuple[str, ...]
    family: str | None
    thinking: Literal["all", "tool_cycle", "template"]
    sampling: SamplingParams
    proxy: ProxyConfig
    router: RouterConfig
    limits: LimitsConfig
    open: tuple[str, ...]
    """Executions to open at the start, if they do not exist."""
    engine_key: Path | None = None
    """File with the key that engines ask for."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """By the name of an engine, where it is now, if that is not where it was at first."""
    routed: bool = False
    """A controller says which execution has which engine; without a route its calls wait."""
    shard: int = 0
    """Which of `proxy.shards` this one is."""


def moved_address(name: EngineName, url: str) -> EngineAddress:
    """Of an engine of the run, at another address."""
    return EngineAddress(url=url, kind="gyre", known_as=name)


def engines_of(plan: ProxySpec) -> list[EngineAddress]:
    """The plan's engines under the names that they began with, where they are now."""
    found = [read_address(engine) for engine in plan.engines]
    moved = plan.moved
    return [
        moved_address(address.name, moved[address.name]) if address.name in moved else address
        for address in found
    ]
