"""`gyre serve` behind the Engine port: SGLang's wire, and cached blocks that follow a call."""

from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar

import msgspec

from gyre.inference.clients.sglang import SglangEngine, request_id
from gyre.inference.clients.wire import decoded
from gyre.types.errors import EngineError
from gyre.types.sampling import Chunk, GenerateRequest, PinnedKv, StoredKv


class _Held(msgspec.Struct):
    pin: int
    tokens: int


class _Put(msgspec.Struct):
    bytes: int
    name: str = msgspec.field(name="from")


_T = TypeVar("_T")
_HELD = msgspec.json.Decoder(_Held)
_PUT = msgspec.json.Decoder(_Put)


class GyreEngine(SglangEngine):
    """One `gyre serve`."""

    def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Its log-probabilities are of the distribution drawn from, whatever top-p and top-k."""
        return self._generate(ask)

    async def pin(self, ask_id: str) -> PinnedKv:
        return _held(await self._order("/kv/pin", {"rid": request_id(ask_id)}, _HELD))

    async def put(self, pin: int, name: str) -> StoredKv:
        found = await self._order("/kv/put", {"pin": pin, "to": name}, _PUT)
        return StoredKv(name=found.name, num_bytes=found.bytes)

    async def take(self, name: str) -> PinnedKv:
        return _held(await self._order("/kv/take", {"from": name}, _HELD))

    async def let_go(self, pin: int) -> None:
        await self._post("/kv/release", {"pin": pin})

    async def _order(
        self, path: str, body: Mapping[str, int | str], of: msgspec.json.Decoder[_T]
    ) -> _T:
        return decoded(self.name, of, await self._post(path, body))

    async def _post(self, path: str, body: Mapping[str, int | str]) -> bytes:
        status, text = await self._wire.post(path, msgspec.json.encode(body))
        if status != 200:
            detail = text.decode(errors="replace")[:200]
            raise EngineError(f"engine {self.name}: {path} says {status} {detail}".strip())
        return text


def _held(found: _Held) -> PinnedKv:
    return PinnedKv(pin=found.pin, tokens=found.tokens)
