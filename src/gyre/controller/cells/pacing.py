"""Engines that take many times as long for a token as their peers, noticed and named."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from gyre.cell.client import CellClient
from gyre.proxy.sharded import ShardedProxyClient
from gyre.types.ids import EngineName
from gyre.types.run_events import EngineSlow

LOOK_S = 5.0
"""How often the proxy is asked."""
WINDOW_S = 30.0
"""Engines are compared by what they did within so long."""
ENOUGH_S = 5.0
"""Of calls in flight, added up, without which an engine's pace says nothing."""
SLOW = 10.0
"""Times its peers' median."""


@dataclass(slots=True)
class _Window:
    busy_s: float = 0.0
    num_tokens: int = 0

    @property
    def token_s(self) -> float | None:
        """None of an engine that had too little to do."""
        return self.busy_s / max(1, self.num_tokens) if self.busy_s >= ENOUGH_S else None


class TokenRates:
    """How long each engine takes for a token, call by call, over one window after the other."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._tokens: dict[int, int] = {}
        self._looked_at: float | None = None
        self._since = 0.0
        self._slow: set[int] = set()

    def look(self, now: float, found: Mapping[int, tuple[int, int]]) -> list[EngineSlow]:
        """By engine: calls in flight, and tokens so far; those that are slow, each said once."""
        if self._looked_at is None:
            self._since = now
        else:
            self._add(now - self._looked_at, found)
        self._looked_at = now
        self._tokens = {engine: tokens for engine, (_, tokens) in found.items()}
        if now - self._since < WINDOW_S:
            return []
        self._since = now
        windows, self._windows = self._windows, {}
        return self._compared(windows)

    def _add(self, seconds: float, found: Mapping[int, tuple[int, int]]) -> None:
        for engine, (in_flight, tokens) in found.items():
            window = self._windows.setdefault(engine, _Window())
            window.busy_s += seconds * in_flight
            # Another proxy begins to count anew.
            window.num_tokens += max(0, tokens - self._tokens.get(engine, tokens))

    def _compared(self, windows: Mapping[int, _Window]) -> list[EngineSlow]:
        paces = {engine: one.token_s for engine, one in windows.items()}
        known = {engine: pace for engine, pace in paces.items() if pace is not None}
        slow = []
        for engine, pace in known.items():
            peers = [one for other, one in known.items() if other != engine]
            if not peers or pace < SLOW * median(peers):
                self._slow.discard(engine)
            elif engine not in self._slow:
                self._slow.add(engine)
                slow.append(EngineSlow(engine=engine, token_s=pace, peers_token_s=median(peers)))
        return slow


class SlowEngineDetector:
    """Asks the proxy how engines are doing, for as long as the run lasts."""

    def __init__(
        self,
        cells: Mapping[int, CellClient],
        proxy: ShardedProxyClient,
        *,
        hear: Callable[[Any], None],
    ) -> None:
        self._cells = cells
        self._proxy = proxy
        self._hear = hear
        self._paces = TokenRates()

    async def work(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            work = await self._proxy.work_of_engines()
            names: dict[EngineName, int] = {one.engine: cell for cell, one in self._cells.items()}
            found = {names[name]: one for name, one in work.items() if name in names}
            for fact in self._paces.look(clock(), found):
                self._hear(fact)
