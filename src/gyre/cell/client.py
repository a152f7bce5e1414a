"""Cells as their controller sees them: orders over HTTP, and errors that keep their kind.

`cell/api.py` answers them.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from gyre.cell.protocol import (
    ABOUT,
    BroadcastRequest,
    CellHealth,
    ClaimHeader,
    ErrorReply,
    ExposedWeights,
    FormGroupsRequest,
    LeaveRequest,
    LoadedWeights,
    LoadRequest,
    OfferRequest,
    ReduceReply,
    ReduceRequest,
    SavedCheckpoint,
    SaveRequest,
    ScoreReply,
    StepRequest,
    body_of,
    made,
)
from gyre.cluster.liveness import silent_before
from gyre.types.errors import CellError, CellGone
from gyre.types.ids import EngineName
from gyre.types.training import ClaimReport, Score, StepReport

HEALTH_S = 5.0
"""A cell whose health takes longer does not answer."""
ORDER_S = 900.0
"""A cell that takes longer over an order never ends it, even if its health is good."""
WRITES = ("save", "checkpoint")
"""Orders that a disk may hold up, and that are waited for as long as the cell answers others."""
T = TypeVar("T")


class _About(msgspec.Struct):
    context_length: int


class CellClient:
    """One cell process; every order may raise CellGone, and what the cell itself raised."""

    def __init__(
        self,
        number: int,
        url: str,
        session: aiohttp.ClientSession,
        *,
        order_s: float = ORDER_S,
        engine: EngineName | None = None,
    ) -> None:
        """`engine` is what the proxy has called it since it was elsewhere."""
        self.number = number
        self.url = url
        self.engine = EngineName(urlsplit(url).netloc) if engine is None else engine
        """As the proxy knows it."""
        self._session = session
        self._order_s = order_s

    async def health(self) -> CellHealth:
        with self._boundary("health"):
            async with (
                asyncio.timeout(HEALTH_S),
                self._session.get(f"{self.url}/cell/health") as answer,
            ):
                return self._decoded("health", answer.status, await answer.read(), CellHealth)

    async def claims_at_once(self) -> int:
        """Claims that it works on together; 1 for a cell that does not report it."""
        try:
            return (await self.health()).claims_at_once
        except CellError:
            return 1  # A claim will show whether it is gone, or only slow to answer.

    async def context_tokens(self) -> int:
        """Most tokens of one call."""
        with self._boundary("model_info"):
            async with (
                asyncio.timeout(self._order_s),
                self._session.get(f"{self.url}/model_info") as answer,
            ):
                found = await answer.read()
                return self._decoded("model_info", answer.status, found, _About).context_length

    async def enter(self) -> dict[str, float]:
        return await self._post("enter", b"{}", dict[str, float])

    async def leave(self, *, keep_sum: bool) -> dict[str, float]:
        body = body_of(LeaveRequest(keep_sum=keep_sum))
        return await self._post("leave", body, dict[str, float])

    async def expose(self) -> ExposedWeights:
        return await self._post("expose", b"{}", ExposedWeights)

    async def pull(self, exposed: ExposedWeights) -> None:
        await self._post("pull", msgspec.json.encode(exposed), dict[str, float])

    async def form_groups(self, epoch: int, order: Sequence[int]) -> None:
        body = body_of(FormGroupsRequest(epoch=epoch, order=list(order)))
        await self._post("meet", body, dict[str, float])

    async def reduce(
        self, epoch: int, members: Sequence[int], leases: Mapping[int, Sequence[int]]
    ) -> int:
        held = {cell: list(one) for cell, one in leases.items()}
        body = body_of(ReduceRequest(epoch=epoch, members=list(members), leases=held))
        return (await self._post("reduce", body, ReduceReply)).num_bytes

    async def step(self, version: int) -> StepReport:
        return await self._post("step", body_of(StepRequest(version=version)), StepReport)

    async def broadcast_weights(self, epoch: int, members: Sequence[int], version: int) -> None:
        body = body_of(BroadcastRequest(epoch=epoch, members=list(members), version=version))
        await self._post("spread", body, dict[str, float])

    async def save(self, folder: Path, *, version: int | None = None) -> SavedCheckpoint:
        """The weights are durable, written now or by a checkpoint of them under way."""
        body = body_of(SaveRequest(folder=str(folder), version=version))
        return await self._post("save", body, SavedCheckpoint)

    async def checkpoint(self, folder: Path, *, version: int | None = None) -> SavedCheckpoint:
        """Weights and optimizer are durable; other orders go on meanwhile."""
        body = body_of(SaveRequest(folder=str(folder), version=version))
        return await self._post("checkpoint", body, SavedCheckpoint)

    async def offer(self, folder: Path, *, version: int) -> ExposedWeights:
        """A checkpoint's weights are in its memory, for engines of other cells."""
        body = body_of(OfferRequest(folder=str(folder), version=version))
        return await self._post("offer", body, ExposedWeights)

    async def load(
        self, folder: Path, *, version: int, digest: str, given: ExposedWeights | None = None
    ) -> LoadedWeights:
        """The engine has a checkpoint's weights, from where they are given if they are."""
        asked = LoadRequest(folder=str(folder), version=version, digest=digest, given=given)
        return await self._post("load", body_of(asked), LoadedWeights)

    async def score(self, claim: bytes) -> tuple[Score, ...]:
        about = ClaimHeader(lease=0, num_executions=1)
        return (await self._post("score", claim, ScoreReply, about=about)).scores

    async def train(
        self, claim: bytes, *, lease: int, num_executions: int, scores: Sequence[Score] | None
    ) -> ClaimReport:
        given = None if scores is None else list(scores)
        about = ClaimHeader(lease=lease, num_executions=num_executions, scores=given)
        return await self._post("train", claim, ClaimReport, about=about)

    async def _post(
        self, what: str, body: bytes, kind: type[T], *, about: ClaimHeader | None = None
    ) -> T:
        headers = {"content-type": "application/json"}
        if about is not None:
            headers = {ABOUT: msgspec.json.encode(about).decode()}
        with self._boundary(what):
            if what in WRITES:
                return await self._while_it_lives(self._posted(what, body, headers, kind))
            async with asyncio.timeout(self._order_s):
                return await self._posted(what, body, headers, kind)

    async def _posted(self, what: str, body: bytes, headers: Mapping[str, str], kind: type[T]) -> T:
        url = f"{self.url}/cell/{what}"
        async with self._session.post(url, data=body, headers=headers) as answer:
            return self._decoded(what, answer.status, await answer.read(), kind)

    async def _while_it_lives(self, order: Coroutine[Any, Any, T]) -> T:
        """However long it takes; TimeoutError once the cell says nothing at all any more."""
        doing = asyncio.ensure_future(order)
        try:
            if await silent_before(doing, self.answers):
                raise TimeoutError("no word of it for too long")
            return doing.result()
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def answers(self) -> bool:
        """Whether it says anything at all in time, asked once."""
        try:
            await self.health()
        except CellGone:
            return False
        except CellError:
            pass  # Which is an answer.
        return True

    def _decoded(self, what: str, status: int, text: bytes, kind: type[T]) -> T:
        try:
            if status == 200:
                return msgspec.json.decode(text, type=kind)
            refusal = msgspec.json.decode(text, type=ErrorReply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            message = f"cell {self.number}: {what}: {status}, not the JSON expected: {error}"
            raise CellError(message) from error
        raise made(refusal, f"cell {self.number}: {what}")

    @contextmanager
    def _boundary(self, what: str) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            found = str(error) or type(error).__name__
            raise CellGone(f"cell {self.number}: {what}: {found}") from error
