"""A server of another project as a cell's engine: asked and ordered as the embedded one is.

Rule 1: weights change only here, while the server is paused, so that every token has one version.
Rule 2: a server whose weights are in doubt serves no call until it has loaded others.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from gyre.types.errors import ConfigError, EngineDraining, EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity:
    """A server's context length and cache blocks, as it reports them."""

    context_tokens: int
    """Most tokens a call may have, prompt and output together."""
    blocks: int
    block_tokens: int


class ExternalServerApi(Protocol):
    """One server; every method raises EngineError where it refuses or does not answer."""

    def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """As of an engine; after `abort` a call ends with a finish of "abort"."""
        ...

    async def answers(self) -> bool:
        """Whether it takes requests."""
        ...

    async def room(self) -> ServerCapacity: ...

    async def abort(self, ask_id: str) -> None:
        """The ask ends soon, with the tokens it has."""
        ...

    async def pause(self) -> None:
        """No pass is under way, and none begins before `resume`; its calls wait."""
        ...

    async def resume(self) -> None: ...

    async def reload(self, folder: Path, *, version: int, keep_kv: bool) -> None:
        """The weights are those of a folder, under this version; asked for while paused."""
        ...

    async def receive(
        self, tensors: "Iterable[tuple[str, Tensor]]", *, version: int, keep_kv: bool
    ) -> None:
        """The same of tensors in this process's memory."""
        ...

    async def version(self) -> int | None:
        """Of its weights, as it says itself."""
        ...

    async def release(self) -> None:
        """The memory of weights and cache is free where the device has that; it has no calls."""
        ...

    async def restore(self) -> None:
        """All as before `release`, but for the cache, which is empty."""
        ...

    async def close(self) -> None: ...


try:
    from gyre.inference.engine.request import Capacity, KVBlocks, Pin
    from gyre.inference.external.process import ServerChild
    from gyre.model.network import Network
    from gyre.model.weights import load_into, parameters
except ModuleNotFoundError as error:
    message = f"an engine of a cell needs {error.name}: pip install 'gyre-rl[torch]'"
    raise ConfigError(message) from error


HEALTH_S = 4.0
"""A server that takes longer to say that it is up is not."""
CANCEL_S = 10.0
"""How long a call may take to end after `abort` was sent to its server."""


class _Call:
    """What a server has said to one ask, whether its reader has seen it or not."""

    def __init__(self, ask_id: str, ask: GenerateRequest) -> None:
        """`ask` is what the server is asked, under an id of its own."""
        self.id = ask_id
        self.ask = ask
        self.chunks: list[Chunk] = []
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self._said = asyncio.Event()
        self._num_read = 0

    @property
    def is_over(self) -> bool:
        return self.error is not None or bool(self.chunks and self.chunks[-1].finish)

    async def next(self) -> list[Chunk]:
        """What was said since this was asked last; raises what the call has failed by."""
        await self._said.wait()
        self._said.clear()
        new = self.chunks[self._num_read :]
        self._num_read = len(self.chunks)
        if not new and self.error is not None:
            raise self.error
        if self.error is not None:
            self._said.set()
        return new

    def take(self, chunk: Chunk) -> None:
        if not self.is_over:
            self.chunks.append(chunk)
            self._said.set()

    def end(self, error: BaseException | None) -> None:
        """The server sends no more; without an error and a finish it was aborted."""
        if error is not None and not self.is_over:
            self.error = error
        self.take(Chunk(ids=[], logprobs=[], finish="abort"))
        self._said.set()


class ExternalEngine:
    """A cell's engine that is a vLLM or SGLang server in a process of its own."""

    def __init__(
        self,
        name: str,
        remote: ExternalServerApi,
        child: ServerChild,
        network: Network,
        room: ServerCapacity,
        *,
        model: str,
        version: int,
        most_running: int,
        weights: Literal["disk", "memory"],
    ) -> None:
        self._name = EngineName(name)
        self._remote = remote
        self._child = child
        self._network = network
        self._room = room
        self._model = model
        self._version = version
        self._most_running = most_running
        self.weights = weights
        """How it gets those of a folder; tensors are always handed over."""
        self._calls: dict[str, _Call] = {}
        self._numbers = itertools.count()
        self._changing = asyncio.Lock()
        self._paused = False
        self._resting = False
        self._closed = False
        self._doubt: str | None = None
        """Why it is unknown which weights the server has."""

    @property
    def name(self) -> EngineName:
        return self._name

    async def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        call = self._begin(ask)
        try:
            while True:
                for chunk in await call.next():
                    yield chunk
                    if chunk.finish is not None:
                        return
        finally:
            self._forget(call)

    async def health(self) -> EngineHealth:
        """Answered beside a load, during which the server may say nothing."""
        ready, detail = await self._state()
        return EngineHealth(ready=ready, version=self._version, model=self._model, detail=detail)

    async def capacity(self) -> Capacity:
        num_running = min(len(self._calls), self._most_running)
        return Capacity(
            running=num_running,
            most_running=self._most_running,
            waiting=len(self._calls) - num_running,
            blocks=self._room.blocks,
            # It does not say how many of them it has in use.
            available_blocks=0 if self._resting else self._room.blocks,
            block_tokens=self._room.block_tokens,
            context_tokens=self._room.context_tokens,
        )

    async def cancel(self, ask_id: str) -> tuple[Chunk, ...]:
        """Ends an ask: everything sampled for it, said before or not; nothing if it is over."""
        call = self._calls.get(ask_id)
        if call is None or call.task is None:
            return ()
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(CANCEL_S):
                await self._remote.abort(call.ask.id)
                await asyncio.wait((call.task,))
        self._forget(call)
        # A callback ends the call, in the next turn of the loop.
        await asyncio.wait((call.task,))
        await asyncio.sleep(0)
        return tuple(chunk for chunk in call.chunks if chunk.ids or chunk.finish)

    async def pause(self) -> None:
        async with self._changing:
            self._refuse_dead()
            await self._remote.pause()
            self._paused = True

    async def resume(self) -> None:
        async with self._changing:
            self._refuse_dead()
            await self._remote.resume()
            self._paused = False

    async def load(
        self, source: "Path | Mapping[str, Tensor]", *, version: int, keep_kv: bool = False
    ) -> None:
        """New weights in the network beside the trainer, and the same in the server (SPEC 2.4).

        Files are compared with their manifest before they are loaded, and the server names the
        version afterwards. Running calls wait meanwhile, and go on. ModelError where names, shapes
        or numbers are wrong; the old weights then still serve.
        """
        async with self._changing:
            self._refuse_at_rest()
            await asyncio.to_thread(load_into, self._network, source)
            try:
                if not self._paused:
                    await self._remote.pause()
                self._doubt = f"its server may have part of version {version}"
                await self._hand_over(source, version, keep_kv)
                found = await self._remote.version()
                if found != version:
                    message = f"expected version {version} in its server, found {found}"
                    raise EngineError(f"engine {self._name}: {message}")
                self._version, self._doubt = version, None
            finally:
                if self._doubt is not None:
                    self._end_calls(self._doubt)
                if not self._paused and not self._child.is_over:
                    await self._remote.resume()

    async def offload(self, *, offload_weights: bool = False) -> None:
        """Calls end with "abort", and asks are refused until `wake`.

        The weights go as well, because they are the server's own and not shared.
        """
        async with self._changing:
            self._refuse_dead()
            self._resting = True
            await asyncio.gather(*(self.cancel(one) for one in list(self._calls)))
            await self._remote.release()

    async def wake(self) -> None:
        async with self._changing:
            self._refuse_dead()
            if self._resting:
                await self._remote.restore()
                self._resting = False

    async def pin(self, what: str | Sequence[int]) -> Pin:
        self._refuse_blocks()

    async def export(self, pin: Pin) -> KVBlocks:
        self._refuse_blocks()

    async def import_(self, given: KVBlocks) -> Pin:
        self._refuse_blocks()

    async def release(self, pin: Pin) -> None:
        self._refuse_blocks()

    async def close(self) -> None:
        """Readers that still wait get an EngineError; nothing of the server is left."""
        if self._closed:
            return
        self._closed = True
        self._end_calls("closed")
        await self._child.end()
        await self._remote.close()

    def _begin(self, ask: GenerateRequest) -> _Call:
        self._refuse_at_rest()
        if self._doubt is not None and not self._changing.locked():
            raise EngineError(f"engine {self._name}: {self._doubt}")
        if ask.id in self._calls:
            message = f"ask {ask.id}: another ask with this id is not over"
            raise EngineError(message, retryable=False)
        call = _Call(ask.id, self._fitted(ask))
        call.task = asyncio.create_task(self._pump(call))
        call.task.add_done_callback(lambda task: self._pumped(call, task))
        self._calls[ask.id] = call
        return call

    def _fitted(self, ask: GenerateRequest) -> GenerateRequest:
        """The same with no more tokens than its prompt leaves room for; servers would refuse it.

        Its id is new, because a server may still be ending an earlier ask of the same.
        """
        num_left = self._room.context_tokens - len(ask.input_ids) // 4
        if num_left < 1:
            message = (
                f"ask {ask.id}: its prompt leaves no room in {self._room.context_tokens} tokens"
            )
            raise EngineError(message, retryable=False)
        most = min(ask.sampling.max_tokens, num_left)
        fresh = f"{ask.id}-{next(self._numbers)}"
        return replace(ask, id=fresh, sampling=replace(ask.sampling, max_tokens=most))

    async def _pump(self, call: _Call) -> None:
        async for chunk in self._remote.generate(call.ask):
            call.take(chunk)

    def _pumped(self, call: _Call, task: "asyncio.Task[None]") -> None:
        self._forget(call)
        call.end(None if task.cancelled() else task.exception())

    def _forget(self, call: _Call) -> None:
        """Closing its stream tells a server to compute no more for the call."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        if call.task is not None and not call.task.done():
            call.task.cancel()

    def _end_calls(self, why: str) -> None:
        for call in list(self._calls.values()):
            call.error = EngineError(f"engine {self._name}: {why}")
            self._forget(call)

    async def _hand_over(
        self, source: "Path | Mapping[str, Tensor]", version: int, keep_kv: bool
    ) -> None:
        if isinstance(source, Path) and self.weights == "disk":
            await self._remote.reload(source, version=version, keep_kv=keep_kv)
            return
        tensors: Iterable[tuple[str, Tensor]] = parameters(self._network, None)
        await self._remote.receive(tensors, version=version, keep_kv=keep_kv)

    async def _state(self) -> tuple[bool, str]:
        """Whether it serves, and what there is to say of that."""
        if self._closed or self._child.is_over:
            return False, "closed" if self._closed else "its server has ended"
        if self._resting:
            return False, "resting"
        if self._changing.locked():
            return True, "between weights"
        if self._doubt is not None:
            return False, self._doubt
        try:
            async with asyncio.timeout(HEALTH_S):
                answers = await self._remote.answers()
        except (EngineError, TimeoutError) as error:
            return False, f"its server does not answer: {error}"
        return answers, "paused" if self._paused else ""

    def _refuse_dead(self) -> None:
        if self._closed:
            raise EngineError(f"engine {self._name}: closed")
        if self._child.is_over:
            raise EngineError(f"engine {self._name}: its server has ended")

    def _refuse_at_rest(self) -> None:
        self._refuse_dead()
        if self._resting:
            raise EngineDraining(f"engine {self._name}: it rests")

    def _refuse_blocks(self) -> NoReturn:
        message = "its server gives no cached blocks away and takes none; calls compute again"
        raise EngineError(f"engine {self._name}: {message}", retryable=False)
