"""The group through which SGLang's workers receive weights: this process is rank 0 and sends."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as groups

from gyre.types.errors import EngineError

HOST = "127.0.0.1"
BUCKET_BYTES = 2**29
"""Weights that are sent together; SGLang has them twice until they are loaded."""
TIMEOUT = timedelta(seconds=120)
"""How long a worker may leave the others of the group waiting."""

Named = Sequence[tuple[str, Tensor]]


class WeightGroup:
    """One group with all workers of a server, known to them by its name."""

    def __init__(self, name: str) -> None:
        """Workers find it at `port` from now on."""
        self.name = name
        self._store = TCPStore(
            HOST, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT, multi_tenant=True
        )
        self.port: int = self._store.port
        self._group: Any = None

    def join(self, num_workers: int) -> None:
        """Returns once all workers have joined as well."""
        # As torch nests them for a group of this name on processors that need no accelerator.
        store = groups.PrefixStore(self.name, self._store)
        store = groups.PrefixStore("cpu/", groups.PrefixStore(f"{self.name}/", store))
        try:
            self._group = groups.ProcessGroupGloo(store, 0, num_workers + 1, TIMEOUT)
        except RuntimeError as error:
            raise EngineError(f"weights for SGLang: its workers did not join: {error}") from error

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Every worker has them, in this order."""
        options = groups.BroadcastOptions()
        options.rootRank = 0
        try:
            for one in tensors:
                self._group.broadcast([one], options).wait()
        except RuntimeError as error:
            raise EngineError(f"weights for SGLang: not sent: {error}") from error

    def drop(self) -> None:
        """Whoever waits in it fails now, not by time-out."""
        self._group = None


async def beside(act: Callable[[], None]) -> None:
    """`act` has been done, in a thread that nobody waits for if it is given up.

    A worker that was told nothing receives nothing, and then only time ends a broadcast.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: EngineError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        found = None
        try:
            act()
        except EngineError as error:
            found = error
        with suppress(RuntimeError):  # The loop may have ended meanwhile.
            loop.call_soon_threadsafe(tell, found)

    Thread(target=run, name="weights", daemon=True).start()
    await done


def buckets(
    tensors: Iterable[tuple[str, Tensor]], most_bytes: int = BUCKET_BYTES
) -> Iterator[Named]:
    """All of them in their order, as many together as fit; one that is larger goes alone."""
    held: list[tuple[str, Tensor]] = []
    for name, one in tensors:
        if held and sum(other.nbytes for _, other in held) + one.nbytes > most_bytes:
            yield held
            held = []
        held.append((name, one))
    if held:
        yield held


def described(named: Named) -> dict[str, list[Any]]:
    """What SGLang is told of tensors before they come."""
    return {
        "names": [name for name, _ in named],
        "dtypes": [str(one.dtype).removeprefix("torch.") for _, one in named],
        "shapes": [list(one.shape) for _, one in named],
    }
