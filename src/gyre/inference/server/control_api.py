"""Control requests to a served engine: pause, weights, sleep and wake, cached blocks in and out."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from gyre.inference.engine.request import Capacity, KVBlocks, Pin
from gyre.inference.kv_transfer import HEADER_BYTES, KvStore, check_name, packed, unpacked
from gyre.inference.server.protocol import Id, read, refuse
from gyre.model.checkpoint_store import read_manifest
from gyre.model.registry import model_folder
from gyre.types.errors import EngineError, NotFound, RequestError
from gyre.types.protocols import Engine
from gyre.types.sampling import Chunk

if TYPE_CHECKING:
    from torch import Tensor

Tag = Literal["kv_cache", "weights", "cuda_graph"]
MOST_DIGITS = 18
PIN_S = 600.0
"""How long a pin is held for who never lets go of it; longer than any hand-over takes."""
COPIES = 4
"""Made of cached blocks at once, because each takes memory until it lies somewhere else."""


class ControllableEngine(Engine, Protocol):
    """An engine with all that the control API does: pause, load, sleep, pin; methods are async."""

    async def capacity(self) -> Capacity: ...

    async def cancel(self, ask_id: str) -> tuple[Chunk, ...]: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load(
        self, source: "Path | Mapping[str, Tensor]", *, version: int, keep_kv: bool = False
    ) -> None: ...

    async def offload(self, *, offload_weights: bool = False) -> None: ...

    async def wake(self) -> None: ...

    async def pin(self, what: str | Sequence[int]) -> Pin: ...

    async def export(self, pin: Pin) -> KVBlocks: ...

    async def import_(self, given: KVBlocks) -> Pin: ...

    async def release(self, pin: Pin) -> None: ...


class Abort(msgspec.Struct):
    """Ends one request, or all of them."""

    rid: str | None = None
    abort_all: bool = False


class Pause(msgspec.Struct):
    """What becomes of the requests while nothing is computed."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


class NewWeights(msgspec.Struct):
    """A folder to take weights from, and what becomes of requests and their cached blocks."""

    model_path: str
    weight_version: str | int | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class MemoryTags(msgspec.Struct):
    """What memory is given back, or taken again; None: all of it."""

    tags: list[Tag] | None = None


class PinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request that is not over, or ids whose beginning is known."""

    rid: str | None = None
    input_ids: list[Id] | None = None


class PinReference(msgspec.Struct, forbid_unknown_fields=True):
    """A pin that was answered before."""

    pin: int


class PutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A pin whose blocks are laid where other engines find them, under this name if they can."""

    pin: int
    to: str


class TakeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What another engine laid there, as it has answered."""

    name: str = msgspec.field(name="from")


class ControlApi:
    """Control requests to the engine: abort, pause, weights, memory, pins, cache blocks."""

    def __init__(
        self,
        engine: ControllableEngine,
        running: set[str],
        *,
        kv_bytes: int,
        kv_store: KvStore | None = None,
        pin_s: float = PIN_S,
    ) -> None:
        self._engine = engine
        self._kv_store = kv_store
        """Through which engines hand each other cached blocks."""
        self._running = running
        """Ids of the requests that are being answered."""
        self._pins: dict[int, Pin] = {}
        self._pin_s = pin_s
        self._ends: dict[int, asyncio.TimerHandle] = {}
        """By pin, when its time is over."""
        self._ending: set[asyncio.Task[None]] = set()
        self._copying = asyncio.Semaphore(COPIES)
        self._laid: dict[int, str] = {}
        """By pin, what its blocks can be asked for by."""
        self.most_import_bytes = kv_bytes + HEADER_BYTES

    async def abort(self, body: bytes) -> dict[str, Any]:
        asked = read(body, Abort)
        if asked.abort_all:
            await self.abort_all()
        elif asked.rid:
            await self._engine.cancel(asked.rid)
        else:
            refuse("rid", "the id of a request, or abort_all", asked.rid)
        return {"success": True}

    async def abort_all(self) -> None:
        for request in list(self._running):
            await self._engine.cancel(request)

    async def pause(self, body: bytes) -> dict[str, Any]:
        """Nothing is computed once this has been answered."""
        asked = read(body, Pause)
        await self._engine.pause()
        if asked.mode == "abort":
            await self.abort_all()
        return {"status": "ok", "message": f"paused, mode {asked.mode}"}

    async def resume(self, body: bytes) -> dict[str, Any]:
        await self._engine.resume()
        return {"status": "ok", "message": "goes on"}

    async def load(self, body: bytes) -> dict[str, Any]:
        """New weights under the version that is said, or the folder says, or else the next one."""
        asked = read(body, NewWeights)
        folder = _folder(asked.model_path)
        version = await self._version(asked, folder)
        if asked.abort_all_requests:
            await self.abort_all()
        await self._engine.load(folder, version=version, keep_kv=not asked.flush_cache)
        return {
            "success": True,
            "message": f"weights {version} of {folder}",
            "num_paused_requests": 0,
        }

    async def offload(self, body: bytes) -> dict[str, Any]:
        tags = read(body, MemoryTags).tags
        if tags is not None and "kv_cache" not in tags:
            refuse("tags", "kv_cache among them: weights alone are not given back", tags)
        for pin in list(self._pins):
            await self._forget(pin)
        await self._engine.offload(offload_weights=tags is None or "weights" in tags)
        return {"success": True}

    async def wake(self, body: bytes) -> dict[str, Any]:
        tags = read(body, MemoryTags).tags
        # New weights can be loaded before that, so a request for weights alone loses nothing.
        if tags is None or "kv_cache" in tags:
            await self._engine.wake()
        return {"success": True}

    async def pin(self, body: bytes) -> dict[str, Any]:
        asked = read(body, PinRequest)
        what: str | list[int] | None = asked.rid if asked.input_ids is None else asked.input_ids
        if what is None or (asked.rid is not None and asked.input_ids is not None):
            refuse("rid", "rid or input_ids, one of them", "both" if what else "neither")
        return self._held(await self._engine.pin(what or ()))

    async def export(self, body: bytes) -> bytes:
        blocks = await self._engine.export(self._named(read(body, PinReference).pin))
        return await asyncio.to_thread(packed, blocks)

    async def put(self, body: bytes) -> dict[str, Any]:
        """Pinned blocks where another engine can take them, until it has or the pin is let go."""
        asked = read(body, PutRequest)
        kv_store = self._shared("to")
        check_name("to", asked.to)
        pin = self._named(asked.pin)
        await self._drop(pin.id)
        async with self._copying:
            blocks = await self._engine.export(self._named(asked.pin))
            name, num_bytes = await asyncio.to_thread(kv_store.put, blocks, asked.to)
        if pin.id not in self._pins:
            # Let go meanwhile, by a client that gave up waiting and will never drop them.
            await asyncio.to_thread(kv_store.drop, name)
            raise NotFound(f"pin {pin.id}: let go before its blocks were laid", where="pin")
        self._laid[pin.id] = name
        return {"bytes": num_bytes, "tokens": pin.num_tokens, "from": name}

    async def take(self, body: bytes) -> dict[str, Any]:
        kv_store, name = self._shared("from"), read(body, TakeRequest).name
        async with self._copying:
            return self._held(
                await self._engine.import_(await asyncio.to_thread(kv_store.take, name))
            )

    async def take_in(self, body: bytes) -> dict[str, Any]:
        return self._held(await self._engine.import_(await asyncio.to_thread(unpacked, body)))

    async def release(self, body: bytes) -> dict[str, Any]:
        await self.let_go(self._named(read(body, PinReference).pin).id)
        return {"success": True}

    async def let_go(self, number: int) -> None:
        """Nothing is held for who asked for that pin any more, if it is held at all."""
        pin = self._pins.get(number)
        if pin is not None:
            await self._forget(number)
            with suppress(EngineError):  # One that is broken has lost the blocks as well.
                await self._engine.release(pin)

    async def _version(self, asked: NewWeights, folder: Path) -> int:
        if asked.weight_version is not None:
            said = str(asked.weight_version)
            # As many digits as call logs have bits for.
            if not (said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS):
                refuse("weight_version", f"a number of up to {MOST_DIGITS} digits", said[:40])
            return int(said)
        manifest = await asyncio.to_thread(read_manifest, folder)
        if manifest is not None:
            return manifest.version
        return ((await self._engine.health()).version or 0) + 1

    def _held(self, pin: Pin) -> dict[str, Any]:
        self._pins[pin.id] = pin
        clock = asyncio.get_running_loop()
        self._ends[pin.id] = clock.call_later(self._pin_s, self._end, pin.id)
        return {"pin": pin.id, "tokens": pin.num_tokens}

    def _named(self, pin: int) -> Pin:
        if pin not in self._pins:
            raise NotFound(f"expected a pin that is held, found {pin}", where="pin")
        return self._pins[pin]

    def _shared(self, where: str) -> KvStore:
        if self._kv_store is None:
            raise NotFound("this server shares no folder (--share)", where=where)
        return self._kv_store

    def _end(self, pin: int) -> None:
        ending = asyncio.create_task(self.let_go(pin))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _forget(self, pin: int) -> None:
        """The pin is none of this server's, and nothing of it lies anywhere."""
        del self._pins[pin]
        self._ends.pop(pin).cancel()
        await self._drop(pin)

    async def _drop(self, pin: int) -> None:
        """What was laid of the pin is gone."""
        name = self._laid.pop(pin, None)
        if name is not None and self._kv_store is not None:
            await asyncio.to_thread(self._kv_store.drop, name)


def _folder(model: str) -> Path:
    folder = model_folder(model)
    try:
        folder.stat()
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the name.
        raise RequestError(
            f"expected a folder with weights: {error}", where="model_path"
        ) from error
    return folder
