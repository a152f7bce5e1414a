"""A call goes from one engine to another with its cached blocks, or computes its prefix again."""

from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import perf_counter
from typing import Any

import numpy as np
from benchmarks.gpu.moves.cells import CORE, SATELLITE, Pair

from gyre.inference.clients.sglang import GyreEngine
from gyre.types.sampling import Chunk, GenerateRequest, SamplingParams

Sample = tuple[str, dict[str, Any]]
NUM_OUTPUT = 256
"""More than a call gets before it is moved."""


class Hands:
    """Calls with prompts that no engine has seen."""

    def __init__(self, pair: Pair, vocabulary: int) -> None:
        self._engines = pair.engines
        self._vocabulary = vocabulary
        self._num_calls = 0

    async def warm(self, num_tokens: int) -> float:
        """Seconds until both engines have compiled what a call of that length needs."""
        began = perf_counter()
        for engine in self._engines.values():
            await self._first(engine, self._ask(num_tokens, max_tokens=4))
        return perf_counter() - began

    async def compared(self, num_tokens: int, which: str) -> AsyncIterator[Sample]:
        """One call moved with its blocks, and one whose prefix is computed where it arrives."""
        moved = await self._moved(num_tokens)
        yield f"hand-off of {num_tokens:,} tokens, {which}", moved
        began = perf_counter()
        await self._first(self._engines[SATELLITE], self._ask(num_tokens, max_tokens=4))
        again = {"seconds": perf_counter() - began}
        yield f"prefill of {num_tokens:,} tokens, {which}", again

    async def _moved(self, num_tokens: int) -> dict[str, float]:
        """From the order to move until the destination's first token, in the proxy's order."""
        source, destination = self._engines[CORE], self._engines[SATELLITE]
        ask = self._ask(num_tokens)
        phases: dict[str, float] = {}
        async with aclosing(source.generate(ask)) as chunks:
            first = await anext(chunks)
            began = perf_counter()
            held = await source.pin(ask.id)
            phases["pin"] = perf_counter() - began
        # The stream is closed, and with it the call is cancelled where it was.
        at = perf_counter()
        laid = await source.put(held.pin, f"{ask.id}-{held.pin}")
        phases["put"], at = perf_counter() - at, perf_counter()
        taken = await destination.take(laid.name)
        phases["take"], at = perf_counter() - at, perf_counter()
        await self._first(destination, self._continued(ask, first))
        phases["first token"] = perf_counter() - at
        seconds = perf_counter() - began
        await source.let_go(held.pin)
        await destination.let_go(taken.pin)
        return {
            "seconds": seconds,
            "bytes": laid.num_bytes,
            "tokens": taken.tokens,
        } | phases

    async def _first(self, engine: GyreEngine, ask: GenerateRequest) -> Chunk:
        """The call's first tokens, all that it is asked for."""
        async with aclosing(engine.generate(ask)) as chunks:
            return await anext(chunks)

    def _ask(self, num_tokens: int, *, max_tokens: int = NUM_OUTPUT) -> GenerateRequest:
        self._num_calls += 1
        rng = np.random.default_rng(self._num_calls)
        ids = array("i", rng.integers(0, self._vocabulary, num_tokens).tolist())
        name = f"call-{self._num_calls}"
        sampling = SamplingParams(max_tokens=max_tokens)
        return GenerateRequest(id=name, input_ids=ids.tobytes(), sampling=sampling, execution=name)

    def _continued(self, ask: GenerateRequest, first: Chunk) -> GenerateRequest:
        known = ask.input_ids + array("i", first.ids).tobytes()
        sampling = SamplingParams(max_tokens=4)
        return GenerateRequest(
            id=f"{ask.id}-moved", input_ids=known, sampling=sampling, execution=ask.execution
        )
