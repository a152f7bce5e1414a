"""What a kind of engine server can be told, whatever the words in which it is told."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gyre.types.sampling import Chunk, GenerateRequest

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapacity:
    """How much a server holds, as it says itself."""

    context_tokens: int
    """Most tokens a call may have, prompt and output together."""
    blocks: int
    block_tokens: int


class ExternalServerApi(Protocol):
    """One server; every method raises EngineError where it refuses or does not answer."""

    def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """As of an engine; what it is told to end, it ends with a finish of "abort"."""
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
