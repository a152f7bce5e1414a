"""Protocols that adapters implement: Engine, Renderer, Transport, Tracker, Node, Cluster.

Those around one execution are in `types/places.py`, and that of a trainer, which speaks of
tensors, is in `trainer/protocol.py`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gyre.types.conversation import Message, Tool
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, GenerateRequest, PinnedKv, StoredKv


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Bytes that a process holds; another process that has this can read them meanwhile."""

    kind: str
    """The transport by which they are read."""
    peer: str
    """Who holds them, as that transport calls it: an address, or the name of a file."""
    key: str
    """32 hex digits that no other exposure ever had; a secret, because it lets one read."""
    version: int
    """Of what the bytes say."""
    num_bytes: int
    at: int = 0
    """Where they begin, for a transport that reads memory by its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBundle:
    """Tensors that a process holds for others: their bytes, which begin with a sheet about them."""

    exposure: Exposure
    sheet_bytes: int
    sheet_xxh3: str
    """128 bits in hex; the sheet itself has the hashes of everything else."""

    @property
    def version(self) -> int:
        return self.exposure.version

    @property
    def num_bytes(self) -> int:
        return self.exposure.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRange:
    """Bytes of a device's memory, within one of the pieces that their lender names."""

    piece: int
    at: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcHandle:
    """Device memory that processes of the same machine can read, for as long as it is lent."""

    key: str
    """32 hex digits that no other loan ever had; they stand at `stamp` until the loan ends."""
    pieces: tuple[str, ...]
    """Handles of the device's driver in hex."""
    stamp: MemoryRange
    parts: tuple[MemoryRange, ...]
    sums: tuple[int, ...]
    """Of each part, by which a copy of it is checked."""

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTokens:
    """Tokens of some messages, each with the message it belongs to."""

    ids: list[int]
    owners: list[int]
    """Per id: index of its message in the list that was rendered; PREFACE for tools or default
    system text before the first message, GENERATION for the trailing generation prompt."""


PREFACE = -1
GENERATION = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The encoding of new messages that continue a sampled reply."""

    trim: int
    """How many ids at the end of the previous output are dropped before `ids` follow."""
    ids: list[int]
    owners: list[int]
    """Per id: index into the new messages (a separator or synthesised close that precedes the
    first message belongs to message 0), or GENERATION."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A tool call as the model wrote it."""

    name: str
    arguments: str
    """JSON text."""
    native_id: str | None
    end: int | None
    """Index in the output ids just after the call; None when the parser cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """An output read back as a message; malformed tool calls are part of the text."""

    text: str
    reasoning: str | None
    calls: tuple[ParsedCall, ...]


class Renderer(Protocol):
    """Messages to token ids and back, for one model family (SPEC 4.2)."""

    @property
    def name(self) -> str:
        """Family and settings that change tokens; part of what must match (EDGE M02)."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def keeps_thinking(self) -> bool:
        """Whether the thinking of earlier turns stays in every prompt."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> RenderedTokens:
        """The whole conversation followed by the generation prompt, exactly once."""
        ...

    def bridge(
        self,
        prompt_tail: Sequence[int],
        output: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> Continuation | None:
        """What follows a sampled output; None when this family must render anew.

        `prompt_tail` holds at least the last turn's opening; messages hold no assistant.
        """
        ...

    def parse(
        self, output: Sequence[int], prompt_tail: Sequence[int], tools: Sequence[Tool]
    ) -> ParsedReply: ...

    def encode(self, text: str) -> list[int]:
        """Ids of outside text: never a special id, also where the text spells one."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Engine(Protocol):
    """Something that samples tokens; adapters translate names, move bytes and map errors."""

    @property
    def name(self) -> EngineName: ...

    def generate(self, ask: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Chunks until one carries `finish`; raises EngineError otherwise.

        Closing the iterator early aborts the request at the engine. Chunks that were yielded
        before an error count as sampled.
        """
        ...

    async def health(self) -> EngineHealth:
        """Raises EngineError when the engine does not answer."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class KvMovable(Engine, Protocol):
    """An engine whose cached blocks can follow a call to another of its kind (SPEC 2.3).

    Every method raises EngineError; blocks that are lost are computed again.
    """

    async def pin(self, ask_id: str) -> PinnedKv:
        """Keeps what is computed of an unfinished ask, also after the ask has ended."""
        ...

    async def put(self, pin: int, name: str) -> StoredKv:
        """Lays pinned blocks where engines of this kind find them, under that name if it can."""
        ...

    async def take(self, name: str) -> PinnedKv:
        """Takes in what another put there; an ask that needs them finds them while held."""
        ...

    async def let_go(self, pin: int) -> None: ...


class Transport(Protocol):
    """Bytes of one process that others read without its help, in main memory on both sides.

    Methods block, may be called from any thread, and raise TransferError. Nothing is read but what
    was exposed: ExposureGone says that it is there no longer, before or during the read.
    """

    def expose(self, parts: Sequence[memoryview], *, version: int) -> Exposure:
        """A copy of these bytes, one after the other, can be read until it is withdrawn."""
        ...

    def read(self, given: Exposure, at: int, into: memoryview) -> None:
        """`into` holds what was exposed from there on; after an error, anything at all."""
        ...

    def withdraw(self, given: Exposure) -> None:
        """Frees its memory, and fails the processes that read it; a second time does nothing."""
        ...

    def close(self) -> None:
        """Everything is withdrawn; a second time does nothing."""
        ...


class Tracker(Protocol):
    """Where the metrics of one run go, for people to look at while it goes on.

    It may raise what its library raises, and take its time: a run logs through `Trackers`, which
    does neither and calls it in a thread of its own.
    """

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """A reader sees them soon, before `close`; steps may repeat and go back."""
        ...

    def close(self) -> None:
        """What was logged is where it belongs; a second time does nothing."""
        ...


class NodeProcess(Protocol):
    """A process as the node that started it knows it, the leader of a session of its own."""

    @property
    def pid(self) -> int:
        """On its machine."""
        ...

    @property
    def is_over(self) -> bool: ...

    async def tell(self, line: bytes) -> None:
        """A line for its standard input; OSError when the process has closed it."""
        ...

    def hang_up(self) -> None:
        """Nothing more comes over its standard input."""
        ...

    def lines(self) -> AsyncIterator[bytes]:
        """What it prints, line by line, until every process that shares its output closed it."""
        ...

    async def wait(self) -> int:
        """Its status; LOST when it went with its machine and its status is unknown."""
        ...

    async def close(self) -> None:
        """It has ended, and nothing of it is left open where it was started."""
        ...


LOST = -1
"""In place of a status that is unknown."""


class ProcessHandle(Protocol):
    """A process of the run, to wait for and to end; spawned, forked or adopted."""

    @property
    def name(self) -> str:
        """As people know it."""
        ...

    @property
    def pid(self) -> int:
        """On its machine."""
        ...

    @property
    def is_over(self) -> bool: ...

    def signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        ...

    async def wait(self) -> int:
        """Its status, once it has ended; LOST where that is unknown."""
        ...

    async def end(self, within_s: float) -> None:
        """It has ended, by itself if it does so in time, and so has everything it started."""
        ...

    async def stop(self) -> None:
        """The same, after it got SIGTERM."""
        ...

    async def kill(self) -> None:
        """It is gone, and so is everything it started."""
        ...


class Node(Protocol):
    """Where processes can be started: a machine, or a part of one that is kept for a cell."""

    @property
    def host(self) -> str:
        """Address of what listens there, for all processes of the run."""
        ...

    @property
    def doors(self) -> Sequence[str]:
        """HOST:PORT on each further node of a cell that is on several, where its ranks start."""
        ...

    @property
    def is_lost(self) -> bool:
        """Nothing can be started there any more, and what ran there is gone or out of reach."""
        ...

    async def spawn(self, argv: Sequence[str], *, log: str) -> NodeProcess:
        """This installation's Python with these arguments; what it reports as errors is logged.

        ConfigError where that cannot be.
        """
        ...

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        """Signals a process there, or the whole group it leads; nothing happens if it is gone."""
        ...

    async def is_running(self, pid: int, log: str) -> bool:
        """Whether the process lives there and writes its errors there, as no other would."""
        ...

    def signal_log_holder(self, log: str, number: int) -> None:
        """Signals the process of this node whose standard error is that file, if one lives."""
        ...


class Cluster(Protocol):
    """The machines of a run; it says where processes start, and nothing of what they do."""

    @property
    def here(self) -> Node:
        """Beside the controller."""
        ...

    @property
    def is_shared(self) -> bool:
        """Every spot is of one machine, whose memory its processes share."""
        ...

    async def cell(self, cell: int, *, nodes: int = 1) -> Node:
        """Kept for that cell for as long as it is not lost, and then another.

        A cell on several nodes has its driver there, and doors on the others.
        """
        ...

    async def agents(self) -> Node:
        """For one more execution."""
        ...

    def signal_log_holder(self, log: str, number: int) -> None:
        """Signals the process whose standard error is that file, on any machine, if one lives."""
        ...

    async def close(self) -> None:
        """What was kept is given back; what is not meant to last has ended."""
        ...
