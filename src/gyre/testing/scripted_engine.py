"""An engine in this process that follows a script, and fails on demand."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from gyre.testing.script import NoReply, ScriptedAnswer, ScriptedModel
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest

FaultKind = Literal[
    "gone",  # the connection is refused, also to health
    "refuse",  # answers with `status` and nothing else
    "die",  # the stream is cut
    "hang",  # accepts, then silence, also from health
    "stall",  # the stream falls silent while health still answers
    "abort",  # ends the stream by itself with finish "abort"
    "json",  # an event that is no JSON
    "lengths",  # fewer log-probabilities than ids
    "nan",  # a log-probability that is no number
    "no ids",  # an event without its ids
    "no logprobs",  # answers well, without log-probabilities
    "echo",  # answers well, with an echo that differs from the prompt
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """Something that goes wrong with one ask, or with all of them."""

    kind: FaultKind
    after: int = 0
    """Tokens of the answer that are delivered first."""
    status: int = 503
    """For "refuse"."""


async def _at_once(ask: GenerateRequest, sent: int) -> None:
    await asyncio.sleep(0)


class ScriptedEngine:
    """An Engine over a scripted model; keeps every request it was sent."""

    def __init__(
        self,
        name: str,
        model: ScriptedModel,
        *,
        chunk_tokens: int = 4,
        version: int = 0,
        before_chunk: Callable[[GenerateRequest, int], Awaitable[None]] = _at_once,
    ) -> None:
        self._name = EngineName(name)
        self._model = model
        self._chunk_tokens = chunk_tokens
        self.before_chunk = before_chunk
        """Awaited before each chunk with the number of tokens sent; hold or count here."""
        self.version = version
        """Read anew for each chunk."""
        self.fault: EngineFault | None = None
        """What is wrong with every ask until changed."""
        self.next_faults: deque[EngineFault | None] = deque()
        """What is wrong with the next asks, one each; used up before `fault`."""
        self.asks: list[GenerateRequest] = []
        self.aborted: list[str] = []
        """Ids of asks whose iterator was closed before its end."""
        self.health_asks = 0
        self.running = 0
        self.most_running = 0
        self._frozen = asyncio.Event()

    @property
    def name(self) -> EngineName:
        return self._name

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        self.asks.append(ask)
        fault = self.next_faults.popleft() if self.next_faults else self.fault
        self._refuse(fault)
        plan = self._plan(ask)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        ended = False
        try:
            async with aclosing(self._chunks(ask, plan, fault)) as chunks:
                async for chunk in chunks:
                    ended = chunk.finish is not None
                    yield chunk
        except EngineError:
            ended = True
            raise
        finally:
            self.running -= 1
            if not ended:
                self.aborted.append(ask.id)

    async def health(self) -> EngineHealth:
        self.health_asks += 1
        if self.fault is not None and self.fault.kind == "gone":
            raise self._gone()
        if self.fault is not None and self.fault.kind == "hang":
            await self._frozen.wait()
        return EngineHealth(ready=True, version=self.version, model="scripted")

    async def close(self) -> None:
        self._frozen.set()

    def _gone(self) -> EngineError:
        error = EngineError(f"engine {self._name}: connection refused")
        error.__cause__ = ConnectionRefusedError()
        return error

    def _refuse(self, fault: EngineFault | None) -> None:
        if fault is not None and fault.kind == "gone":
            raise self._gone()
        if fault is not None and fault.kind == "refuse":
            retryable = fault.status == 429 or fault.status >= 500
            raise EngineError(f"engine {self._name}: {fault.status}", retryable=retryable)

    def _plan(self, ask: GenerateRequest) -> ScriptedAnswer:
        try:
            return self._model.plan(ask.input_ids, ask.sampling.max_tokens)
        except NoReply as error:
            raise EngineError(f"engine {self._name}: {error}", retryable=False) from error

    async def _chunks(
        self, ask: GenerateRequest, plan: ScriptedAnswer, fault: EngineFault | None
    ) -> AsyncGenerator[Chunk, None]:
        """What the ask is answered with, cut where the fault says."""
        kind = None if fault is None else fault.kind
        cuts = kind not in (None, "no logprobs", "echo")
        count = min(len(plan.ids), fault.after) if fault is not None and cuts else len(plan.ids)
        echo = memoryview(ask.input_ids).cast("i").tolist()
        if kind == "echo" and echo:
            echo[-1] += 1
        for start in range(0, count, self._chunk_tokens) or ([] if cuts else [0]):
            await self.before_chunk(ask, start)
            end = min(start + self._chunk_tokens, count)
            yield Chunk(
                ids=plan.ids[start:end],
                logprobs=None if kind == "no logprobs" else plan.logprobs[start:end],
                version=self.version,
                finish=plan.finish if end == count and not cuts else None,
                prompt_ids=echo if start == 0 else None,
            )
        if cuts:
            await self.before_chunk(ask, count)
            yield await self._fail(kind)

    async def _fail(self, kind: FaultKind | None) -> Chunk:
        match kind:
            case "abort":
                return Chunk(ids=[], logprobs=[], version=self.version, finish="abort")
            case "hang" | "stall":
                await self._frozen.wait()
                raise EngineError(f"engine {self._name}: closed")
            case "die":
                raise EngineError(f"engine {self._name}: the stream was cut")
            case _:
                raise EngineError(f"engine {self._name}: garbage ({kind})")
