"""What a run of some size needs, by what one of everything was measured to cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from benchmarks.gpu.case_study import PATHS
from benchmarks.scale.sizes import Size

from benchmarks import compare
from gyre.controller.cells import health
from gyre.controller.executions import supervisors

DAY_S = 86_400.0
MESSAGE_TOKENS = 300
"""Of a message of an agent program's, four times what the case study on a GPU has."""
SHARD_SHARE = 0.6
"""Of a core that a shard should be busy on average."""
NIC_BYTES = 50e9
"""A second, of a node: 400 Gbit/s."""
ASSUMED = (
    "An execution has the paths and messages of the paper's case study; every other is a reply.",
    f"A message has {MESSAGE_TOKENS} tokens.",
    f"A shard is busy {SHARD_SHARE:.0%} of the time on average, because calls come in bursts.",
    f"A node sends and receives {NIC_BYTES / 1e9:g} GB/s.",
)

_LONG_TOKENS = 190_000
"""Of the history in the benchmark `long`."""
_SCHEDULER_EVENTS = 2_000
"""Of one call in the benchmark `scheduler`."""
_LIVE = (512, 2_048, 8_192)
"""Executions in the benchmark `scale-controller`."""
_WEIGHED = 2_048
"""Live executions where the benchmark `scale-controller` asks for memory."""
_FACTS = 5
"""That a supervisor posts of an execution: prepared, launched, terminated, assessed, closed."""


class NoResult(LookupError):
    """A quantity that no result file has."""


class Units:
    """What one of everything costs, by the newest results."""

    def __init__(self, results: Sequence[compare.Result]) -> None:
        self._found = {
            name: compare.quantities(one) for name, one in compare.newest(results).items()
        }

    def of(self, name: str, quantity: str) -> float:
        """NoResult where its benchmark has not been run."""
        try:
            return self._found[name][quantity]
        except KeyError as error:
            raise NoResult(f"{name}: {quantity}") from error

    @cached_property
    def calls(self) -> int:
        """Of an execution: every other message is a reply."""
        return sum(path.own for path in PATHS) // 2

    @cached_property
    def unique_tokens(self) -> int:
        """Of an execution, at its end."""
        return sum(path.own for path in PATHS) * MESSAGE_TOKENS

    @cached_property
    def context_tokens(self) -> float:
        """That a call's prompt has on average."""
        weighed = sum(path.own * (path.shared + path.own / 2) for path in PATHS)
        return weighed / sum(path.own for path in PATHS) * MESSAGE_TOKENS

    @cached_property
    def call_cpu_s(self) -> float:
        """Of the proxy: a short call's, and what a long one's takes more in proportion."""
        short, long = self.of("short", "gyre cpu_ms"), self.of("long", "gyre cpu_ms")
        return (short + (long - short) * self.context_tokens / _LONG_TOKENS) / 1000

    @cached_property
    def log_bytes_per_token(self) -> float:
        return self.of("scale-written", "call log bytes_per_token")

    @cached_property
    def journal_bytes(self) -> float:
        """Of an execution, with its share of all other facts."""
        return self.of("live-many", "run journal_bytes") / self.of("live-many", "run executions")

    @cached_property
    def launch_cpu_s(self) -> float:
        """Of the controller, for an execution from launch to close."""
        return self.of("live-many", "run controller_cpu_s") / self.of("live-many", "run executions")

    def event_s(self, live: int) -> float:
        """Of the controller: decided on, obeyed, and routes compared with those that were told."""
        decided = self.of("scheduler", "live-102400 cpu_ms") / 1000 / _SCHEDULER_EVENTS
        return decided + self._grown("event, {} live cpu_ms", live) / 1000

    def look_s(self, live: int) -> float:
        """Once a second, of executions that were adopted."""
        return self._grown("adopt, {} live look_cpu_s", live)

    def recalled_s(self, live: int) -> float:
        """Until a controller that returns knows a run again and has its executions."""
        recalled = self._grown("recall, {} live cpu_ms", live)
        return (recalled + self._grown("adopt, {} live cpu_ms", live)) / 1000

    @cached_property
    def controller_bytes(self) -> float:
        """Of the controller's memory, for an execution that lives: its group, seat and folder."""
        return sum(
            self.of("scale-controller", f"{case}, {_WEIGHED} live bytes_per_execution")
            for case in ("recall", "adopt")
        )

    def _grown(self, quantity: str, live: int) -> float:
        """On the line through the two that were measured nearest; of fewer, what the least took."""
        few, many = _LIVE[:2] if live < _LIVE[1] else _LIVE[1:]
        low, high = (self.of("scale-controller", quantity.format(number)) for number in (few, many))
        return low + (high - low) * (max(live, _LIVE[0]) - few) / (many - few)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run of one size needs."""

    size: Size
    units: Units

    @property
    def live(self) -> int:
        return self.size.live

    @property
    def calls_s(self) -> float:
        return self.size.executions_s * self.units.calls

    @property
    def proxy_cores(self) -> float:
        return self.calls_s * self.units.call_cpu_s

    @property
    def shards(self) -> int:
        return max(1, ceil(self.proxy_cores / SHARD_SHARE))

    @property
    def proxy_bytes(self) -> float:
        """Executions are half as long as they will be, on average."""
        per_token = self.units.of("held", "gyre bytes_per_token")
        return self.live * self.units.unique_tokens / 2 * per_token

    @property
    def messages_s(self) -> dict[str, float]:
        """Of the controller, by kind."""
        size = self.size
        looks = 1 / supervisors.POLL_S + 1 / health.LOOK_S
        return {
            "cells asked how they are": size.cells / health.BEAT_S,
            "shards asked how they stand": self.shards * looks,
            "executions opened and sealed": 2 * size.executions_s,
            "facts that supervisors post": _FACTS * size.executions_s,
            "routes, one order an event": size.events_s,
            "claims given to cells": size.claims_s,
        }

    @property
    def status_bytes_s(self) -> float:
        looks = 1 / supervisors.POLL_S + 1 / health.LOOK_S
        return self.live * looks * self.units.of("scale-written", "status bytes_per_execution")

    @property
    def controller_bytes(self) -> float:
        return self.live * self.units.controller_bytes

    @property
    def controller_cores(self) -> float:
        """As after a return, when it looks at every execution itself."""
        units, size = self.units, self.size
        executions = size.executions_s * units.launch_cpu_s
        events = size.events_s * units.event_s(self.live)
        return executions + events + units.look_s(self.live) / supervisors.POLL_S

    @property
    def journal_bytes_day(self) -> float:
        return self.size.executions_s * DAY_S * self.units.journal_bytes

    @property
    def log_bytes_day(self) -> float:
        per_execution = self.units.unique_tokens * self.units.log_bytes_per_token
        return self.size.executions_s * DAY_S * per_execution

    @property
    def published_bytes(self) -> float:
        """To all engines but the core's own, which has them."""
        return (self.size.cells - 1) * self.size.weight_bytes

    @property
    def published_s(self) -> float:
        """All of them from the nodes of one cell."""
        return self.published_bytes / (self.size.nodes_per_cell * NIC_BYTES)

    @property
    def gradient_bytes(self) -> float:
        """float32 sums of every satellite that takes part in a step."""
        return (self.size.cells_in_step - 1) * self.size.parameters * 4

    @property
    def gradient_s(self) -> float:
        return self.gradient_bytes / (self.size.nodes_per_cell * NIC_BYTES)

    @property
    def cache_bytes(self) -> float:
        """Of all live executions, each with one path of average length."""
        return self.live * self.units.context_tokens * self.size.cache_token_bytes

    @property
    def carried_bytes_s(self) -> float:
        """With executions that move."""
        per_execution = self.units.context_tokens * self.size.cache_token_bytes
        return self.size.moves_s * per_execution
