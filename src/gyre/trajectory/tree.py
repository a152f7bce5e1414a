"""The trajectory tree of one execution over an append-only token arena.

A segment is a run of tokens under its parent: one input message (or the preface with the system
prompt and tools), or a generation prompt with the sampled output of one call. A path from the root
is exactly what an engine saw and said. Everything here is made by applying call records in order,
live and when a log is read back, so both give the same tree (SPEC 4.4, M19).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyre.types.call_records import (
    CallClosed,
    CallDelivered,
    CallEchoed,
    CallFailed,
    CallOpened,
    CallRecord,
    CallRole,
    LogOpened,
    LogSealed,
    NewSegment,
)
from gyre.types.conversation import Message
from gyre.types.errors import InternalError
from gyre.types.ids import ROOT, CallId, SegmentId
from gyre.types.sampling import Span

Ids = NDArray[np.int32]
Logprobs = NDArray[np.float32]


class Arena:
    """A growing one-dimensional array; what is appended never moves relative to its offset."""

    def __init__(self, dtype: type[np.int32] | type[np.float32], *, room: int = 1024) -> None:
        self._items: NDArray[Any] = np.empty(room, dtype=dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return self._items.nbytes

    def append(self, raw: bytes) -> int:
        """Offset at which the little-endian items of `raw` now stand."""
        new = np.frombuffer(raw, dtype=self._items.dtype)
        start, end = self._length, self._length + len(new)
        if end > len(self._items):
            # Half as much again, because at most a third of the memory may then be spare.
            grown = np.empty(max(end, len(self._items) * 3 // 2), dtype=self._items.dtype)
            grown[:start] = self._items[:start]
            self._items = grown
        self._items[start:end] = new
        self._length = end
        return start

    def slice(self, start: int, length: int) -> NDArray[Any]:
        """A view, valid until the next append; copy it to keep it."""
        return self._items[start : start + length]


LONG_PATH_TOKENS = 8192
MOST_PATHS = 4


@dataclass(slots=True)
class Segment:
    """A run of tokens in the tree, shared by all paths that pass through it."""

    id: SegmentId
    parent: SegmentId
    label: str
    start: int
    length: int
    trim: int
    """Tokens at the end of the parent's path that this segment's path leaves out."""
    end: int
    """Length of the path from the root through this segment."""
    depth: int
    """Segments on that path."""
    root: SegmentId
    """The first segment on that path: a preface."""
    above: CallId | None
    """The nearest call that sampled this segment or one above it; None at a root."""
    call: CallId | None = None
    """The call that sampled it; None for input."""
    prompt: int = 0
    """For a sampled segment: how many leading tokens are the generation prompt."""


@dataclass(slots=True)
class CallNode:
    """One call in the tree: its segment, the call it builds on, its role and its reply."""

    id: CallId
    segment: SegmentId
    parent: CallId | None
    """The call whose reply this one's history ends on or builds on; None at a root."""
    root: SegmentId
    """The preface segment its path starts with."""
    role: CallRole
    harness: str
    agent: str | None
    fork: str | None
    ambiguous: bool
    finish: str
    message: Message
    keys: tuple[bytes, ...]
    num_output: int
    logprobs_start: int | None
    """Offset in the arena of log-probabilities; None when the engine gave none."""
    spans: tuple[Span, ...]
    flags: tuple[str, ...]
    opened_at: float
    closed_at: float
    cut: int | None = None
    """How many output ids are committed where a later history holds only a prefix."""
    committed: int | None = None
    """Position in the order of commitment; None while uncommitted (SPEC 4.5)."""

    @property
    def num_committed(self) -> int:
        """Output tokens that the harness is known to have received."""
        if self.committed is None:
            return 0
        return self.num_output if self.cut is None else self.cut

    @property
    def is_trainable(self) -> bool:
        """Whether its output may carry loss (SPEC 4.1, 5, 7.1)."""
        return self.logprobs_start is not None and self.role != "aux"


@dataclass(slots=True)
class Tree:
    """The calls of one execution by the prefixes they share; each token is stored once."""

    opened: LogOpened | None = None
    sealed_at: float | None = None
    segments: list[Segment] = field(default_factory=list)
    calls: dict[CallId, CallNode] = field(default_factory=dict)
    unfinished: dict[CallId, CallOpened] = field(default_factory=dict)
    """Opened and neither closed nor failed: the record is incomplete (M21)."""
    failed: dict[CallId, CallFailed] = field(default_factory=dict)
    last_call: int = 0
    _ids: Arena = field(default_factory=lambda: Arena(np.int32))
    _logprobs: Arena = field(default_factory=lambda: Arena(np.float32))
    _index: dict[tuple[SegmentId, bytes], tuple[SegmentId, ...]] = field(default_factory=dict)
    _below: dict[CallId | None, list[CallId]] = field(default_factory=dict)
    _commits: int = 0
    _paths: dict[SegmentId, Ids] = field(default_factory=dict)
    """Ids of a few long paths, the last used at the end: the next prompt begins with one."""

    def __post_init__(self) -> None:
        self.segments.append(
            Segment(
                id=ROOT,
                parent=ROOT,
                label="root",
                start=0,
                length=0,
                trim=0,
                end=0,
                depth=0,
                root=ROOT,
                above=None,
            )
        )

    # Records

    def apply(self, record: CallRecord) -> None:
        """Adds one record to the tree; records come in the order of the log."""
        match record:
            case LogOpened():
                self.opened = record
            case CallOpened():
                self.unfinished[record.call] = record
                self.last_call = max(self.last_call, record.call)
            case CallClosed():
                self._close(record)
            case CallFailed():
                self.unfinished.pop(record.call, None)
                self.failed[record.call] = record
            case CallDelivered():
                self._commit(self.calls[record.call], None, ())
            case CallEchoed():
                self._commit(self.calls[record.call], record.tokens, record.keys)
            case LogSealed():
                self.sealed_at = record.at

    def _close(self, record: CallClosed) -> None:
        self.unfinished.pop(record.call, None)
        self.last_call = max(self.last_call, record.call)
        at = record.parent
        for new in record.inputs:
            at = self._add(at, new.label, new.ids, new.trim).id
            self._enter(self.segments[at].parent, new.key, at)
        sampled = self._add(at, "assistant", record.prompt + record.output, record.trim)
        parent = sampled.above
        sampled.call = sampled.above = record.call
        sampled.prompt = len(record.prompt) // 4
        for key in record.keys:
            self._enter(sampled.parent, key, sampled.id)
        node = CallNode(
            id=record.call,
            segment=sampled.id,
            parent=parent,
            root=sampled.root,
            role=record.role,
            harness=record.harness,
            agent=record.agent,
            fork=record.fork,
            ambiguous=record.ambiguous,
            finish=record.finish,
            message=record.message,
            keys=record.keys,
            num_output=len(record.output) // 4,
            logprobs_start=(
                None if record.logprobs is None else self._logprobs.append(record.logprobs)
            ),
            spans=record.spans,
            flags=record.flags,
            opened_at=record.opened_at,
            closed_at=record.closed_at,
        )
        self.calls[record.call] = node
        self._below.setdefault(node.parent, []).append(node.id)

    def _add(self, parent: SegmentId, label: str, ids: bytes, trim: int) -> Segment:
        above = self.segments[parent]
        number = SegmentId(len(self.segments))
        segment = Segment(
            id=number,
            parent=parent,
            label=label,
            start=self._ids.append(ids),
            length=len(ids) // 4,
            trim=trim,
            end=above.end - trim + len(ids) // 4,
            depth=above.depth + 1,
            root=number if parent == ROOT else above.root,
            above=above.above,
        )
        self.segments.append(segment)
        return segment

    def _enter(self, parent: SegmentId, key: bytes, segment: SegmentId) -> None:
        there = self._index.get((parent, key), ())
        if segment not in there:
            self._index[parent, key] = (*there, segment)

    def _commit(self, node: CallNode, cut: int | None, keys: tuple[bytes, ...]) -> None:
        if node.committed is None:
            self._commits += 1
            node.committed = self._commits
            node.cut = cut
        elif cut is None:
            node.cut = None
        for key in keys:
            self._enter(self.segments[node.segment].parent, key, node.segment)

    # Looking things up

    def find(self, parent: SegmentId, key: bytes) -> tuple[SegmentId, ...]:
        """Segments that stand under `parent` for a message of this digest."""
        return self._index.get((parent, key), ())

    def same(self, parent: SegmentId, new: NewSegment) -> SegmentId | None:
        """A segment under `parent` with this digest and exactly these tokens."""
        for candidate in self.find(parent, new.key):
            segment = self.segments[candidate]
            if (
                segment.call is None
                and segment.trim == new.trim
                and segment.length * 4 == len(new.ids)
                and self.tokens(candidate).tobytes() == new.ids
            ):
                return candidate
        return None

    def path(self, segment: SegmentId, *, below: SegmentId = ROOT) -> list[SegmentId]:
        """Segments on the way from `below`, which is not among them, to this one."""
        found = []
        while segment != below:
            found.append(segment)
            segment = self.segments[segment].parent
        found.reverse()
        return found

    def tokens(self, segment: SegmentId) -> Ids:
        """A segment's own ids; a view, valid until the next record."""
        one = self.segments[segment]
        return self._ids.slice(one.start, one.length)

    def path_ids(self, segment: SegmentId, *, last: int | None = None) -> Ids:
        """Every id from the root through this segment, trims observed, or only the last ones."""
        pieces: list[Ids] = []
        drop = 0
        wanted = segment
        missing = self.segments[segment].end if last is None else last
        while segment != ROOT and missing > 0:
            one = self.segments[segment]
            if drop == 0 and (known := self._paths.pop(segment, None)) is not None:
                self._paths[segment] = known
                pieces.append(known)
                break
            kept = max(0, one.length - drop)
            pieces.append(self._ids.slice(one.start, kept))
            missing -= kept
            drop = drop - (one.length - kept) + one.trim
            segment = one.parent
        pieces.reverse()
        whole = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
        if last is not None:
            return whole[-last:]
        if len(whole) >= LONG_PATH_TOKENS:
            self._remember(wanted, segment, whole)
        return whole

    def _remember(self, segment: SegmentId, extended: SegmentId, ids: Ids) -> None:
        """Keep a long path's ids; the shorter path that it extends is not needed any more."""
        self._paths.pop(extended, None)
        self._paths[segment] = ids
        while len(self._paths) > MOST_PATHS:
            del self._paths[next(iter(self._paths))]

    def output_ids(self, call: CallId) -> Ids:
        """The sampled ids of a call."""
        node = self.calls[call]
        segment = self.segments[node.segment]
        return self._ids.slice(segment.start + segment.prompt, node.num_output)

    def output_logprobs(self, call: CallId) -> Logprobs:
        """Behaviour log-probabilities, one per sampled id; only of calls that have them."""
        node = self.calls[call]
        if node.logprobs_start is None:
            raise InternalError(f"call {call} has no log-probabilities")
        return self._logprobs.slice(node.logprobs_start, node.num_output)

    def prompt_ids(self, call: CallId) -> Ids:
        """What the engine was sent for a call."""
        node = self.calls[call]
        return self.path_ids(node.segment)[: -node.num_output or None]

    def calls_at(self, segment: SegmentId) -> Iterator[CallNode]:
        """Calls whose input ends with this segment."""
        for below in self._below.get(self.segments[segment].above, []):
            node = self.calls[below]
            if self.segments[node.segment].parent == segment:
                yield node

    def children(self, call: CallId | None) -> list[CallNode]:
        """Calls that build on this one's reply (of None: calls at a root), in order."""
        return [self.calls[below] for below in self._below.get(call, [])]

    def ancestry(self, call: CallId) -> list[CallNode]:
        """Calls on the path of this one, itself last."""
        found: list[CallNode] = []
        at: CallId | None = call
        while at is not None:
            found.append(self.calls[at])
            at = self.calls[at].parent
        found.reverse()
        return found

    def leaves(self) -> list[CallNode]:
        """Candidates for trajectories, in the order they were committed (SPEC 5)."""
        found = [
            node
            for node in self.calls.values()
            if node.committed is not None
            and node.role != "aux"
            and not any(
                child.committed is not None and child.role == node.role
                for child in self.children(node.id)
            )
        ]
        return sorted(found, key=lambda node: node.committed or 0)

    def roots(self) -> list[SegmentId]:
        """Distinct prefaces (system prompt with tools) under which calls stand."""
        return sorted({node.root for node in self.calls.values()})

    # Totals

    @property
    def is_complete(self) -> bool:
        """No request was accepted whose end is unknown (M21)."""
        return not self.unfinished

    @property
    def num_tokens(self) -> int:
        """Unique tokens stored."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Memory of the arenas and of the paths kept."""
        paths = sum(ids.nbytes for ids in self._paths.values())
        return self._ids.nbytes + self._logprobs.nbytes + paths


def grow(records: Sequence[CallRecord]) -> Tree:
    """The tree that a log's records make."""
    tree = Tree()
    for record in records:
        tree.apply(record)
    return tree
