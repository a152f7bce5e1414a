"""The engine in its own thread, as an async Engine."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gyre.types.errors import ConfigError, EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor


try:
    from gyre.inference.engine.engine import EngineCore
    from gyre.inference.engine.request import (
        Capacity,
        KVBlocks,
        Pin,
        Report,
        RequestFailed,
        RequestOutput,
    )
except ModuleNotFoundError as error:
    message = f"the embedded engine needs {error.name}: pip install 'gyre-rl[torch]'"
    raise ConfigError(message) from error


FLUSH_S = 0.02
"""Tokens are handed over this often: waking one reader per token and call would cost more."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Stream:
    """Where the reader of one ask waits."""

    reader: asyncio.AbstractEventLoop
    unsent: list[Report] = field(default_factory=list)
    """Used by the engine's thread."""
    ready: list[Report] = field(default_factory=list)
    """Used by the reader's loop."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self) -> list[Report]:
        await self.woken.wait()
        self.woken.clear()
        taken, self.ready = self.ready, []
        return _joined(taken)


class EmbeddedEngine:
    """The built-in engine as an async Engine: one thread runs requests and passes of its core."""

    def __init__(self, name: str, loop: EngineCore) -> None:
        self._name = EngineName(name)
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"engine-{name}")
        self._streams: dict[str, _Stream] = {}
        self._turning = False
        self._flushed_s = 0.0
        self._closed = False
        self._stopped = False
        self._broken: BaseException | None = None

    @property
    def name(self) -> EngineName:
        return self._name

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        stream = _Stream(asyncio.get_running_loop())
        ended = False
        try:
            await self._order(self._submit, ask, stream)
            while not ended:
                for report in await stream.next():
                    if isinstance(report, RequestFailed):
                        ended = True
                        raise report.error
                    ended = report.chunk.finish is not None
                    yield report.chunk
        finally:
            if not ended and not self._closed:
                self._thread.submit(self._drop, ask.id, stream)

    async def health(self) -> EngineHealth:
        """Answered beside the thread, which may be in the middle of a long pass or load."""
        self._refuse_dead()
        return self._loop.health()

    async def capacity(self) -> Capacity:
        return await self._order(self._loop.capacity)

    async def cancel(self, ask_id: str) -> tuple[Chunk, ...]:
        """Ends an ask; all tokens it has, also those its reader has not seen yet."""
        return await self._order(self._cancel, ask_id)

    async def pause(self) -> None:
        """Returns once no pass is under way; none begins before `resume`."""
        await self._order(self._loop.pause)

    async def resume(self) -> None:
        await self._order(self._loop.resume)

    async def load(
        self, source: "Path | Mapping[str, Tensor]", *, version: int, keep_kv: bool = False
    ) -> None:
        await self._order(self._loop.load, source, version=version, keep_kv=keep_kv)

    async def offload(self, *, offload_weights: bool = False) -> None:
        """Calls end with "abort", and asks are refused as EngineDraining until `wake`."""
        await self._order(self._rest, offload_weights)

    async def wake(self) -> None:
        await self._order(self._loop.wake)

    async def pin(self, what: str | Sequence[int]) -> Pin:
        return await self._order(self._loop.pin, what)

    async def export(self, pin: Pin) -> KVBlocks:
        return await self._order(self._loop.export, pin)

    async def import_(self, given: KVBlocks) -> Pin:
        return await self._order(self._loop.import_, given)

    async def release(self, pin: Pin) -> None:
        await self._order(self._loop.release, pin)

    async def close(self) -> None:
        """Readers that still wait get an EngineError; the thread has ended."""
        if self._closed:
            return
        self._closed = True
        await asyncio.wrap_future(self._thread.submit(self._stop))
        await asyncio.to_thread(self._thread.shutdown)

    async def _order(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `act` gives when the thread has done it, between two passes."""
        self._refuse_dead()

        def ordered() -> R:
            try:
                return act(*args, **kwargs)
            finally:
                self._turn_soon()

        return await asyncio.wrap_future(self._thread.submit(ordered))

    def _refuse_dead(self) -> None:
        if self._closed:
            raise EngineError(f"engine {self._name}: closed")
        if self._broken is not None:
            message = f"engine {self._name}: broken: {self._broken}"
            raise EngineError(message) from self._broken

    # What follows runs in the thread.

    def _submit(self, ask: GenerateRequest, stream: _Stream) -> None:
        self._loop.submit(ask)
        self._streams[ask.id] = stream

    def _drop(self, ask_id: str, stream: _Stream) -> None:
        """Aborts the ask of a reader that went away, unless the id is another's by now."""
        if self._streams.get(ask_id) is stream:
            del self._streams[ask_id]
            self._loop.cancel(ask_id)

    def _cancel(self, ask_id: str) -> tuple[Chunk, ...]:
        chunks = self._loop.cancel(ask_id)
        if chunks:
            self._take([RequestOutput(id=ask_id, chunk=chunks[-1])])
        return chunks

    def _rest(self, offload_weights: bool) -> None:
        self._take(self._loop.offload(offload_weights=offload_weights))

    def _turn_soon(self) -> None:
        if not self._turning and not self._stopped and self._loop.has_calls:
            self._turning = True
            self._thread.submit(self._turn).add_done_callback(self._turned)

    def _turn(self) -> bool:
        """One pass; whether another should follow."""
        reports = self._loop.step()
        self._take(reports)
        return bool(reports) or self._loop.is_busy

    def _turned(self, done: "Future[bool]") -> None:
        self._turning = False
        broken = done.exception()
        if broken is not None:
            self._broken = broken
            self._fail_all(f"broken: {broken}")
        elif done.result():
            self._turn_soon()
        else:
            self._send(list(self._streams))

    def _take(self, reports: Iterable[Report]) -> None:
        """Puts reports with their streams; sends those that have ended or waited long enough."""
        ended = []
        for report in reports:
            stream = self._streams.get(report.id)
            if stream is None:
                continue
            stream.unsent.append(report)
            if isinstance(report, RequestFailed) or report.chunk.finish is not None:
                ended.append(report.id)
        self._send(ended)
        for one in ended:
            del self._streams[one]
        now_s = time.monotonic()
        if now_s - self._flushed_s >= FLUSH_S:
            self._flushed_s = now_s
            self._send(list(self._streams))

    def _send(self, ids: Iterable[str]) -> None:
        by_reader: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, list[Report]]]] = {}
        for one in ids:
            stream = self._streams[one]
            if stream.unsent:
                by_reader.setdefault(stream.reader, []).append((stream, _joined(stream.unsent)))
                stream.unsent = []
        for reader, sent in by_reader.items():
            if not reader.is_closed():
                reader.call_soon_threadsafe(_hand_over, sent)

    def _stop(self) -> None:
        self._stopped = True
        for one in self._streams if self._broken is None else ():
            self._loop.cancel(one)
        self._fail_all("closed")

    def _fail_all(self, found: str) -> None:
        error = EngineError(f"engine {self._name}: {found}")
        error.__cause__ = self._broken
        self._take([RequestFailed(id=one, error=error) for one in self._streams])


def _hand_over(sent: list[tuple[_Stream, list[Report]]]) -> None:
    for stream, reports in sent:
        stream.ready += reports
        stream.woken.set()


def _joined(reports: list[Report]) -> list[Report]:
    """The same with neighbouring chunks of one version made one."""
    joined: list[Report] = []
    for report in reports:
        last = joined[-1] if joined else None
        if (
            isinstance(last, RequestOutput)
            and isinstance(report, RequestOutput)
            and last.chunk.version == report.chunk.version
        ):
            joined[-1] = replace(last, chunk=_both(last.chunk, report.chunk))
        else:
            joined.append(report)
    return joined


def _both(one: Chunk, two: Chunk) -> Chunk:
    return replace(
        one,
        ids=one.ids + two.ids,
        logprobs=(one.logprobs or []) + (two.logprobs or []),
        finish=two.finish,
    )
