"""Which calls compute in the next pass: they wait, run in chunks, or are preempted for memory.

Rule 1: calls that sample go on in every pass, however long the prompts beside them are.
Rule 2: memory goes to the oldest call; the youngest steps back and computes again later.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gyre.inference.engine.block_manager import BlockManager, Digest, extend_chain


@dataclass(slots=True, eq=False)
class SequenceState:
    """One call in the engine: its tokens, and the cache blocks of those that are computed."""

    id: str
    tokens: "array[int]"
    """The prompt and what was sampled after it."""
    num_computed: int = 0
    """Tokens whose keys and values are in the blocks."""
    blocks: list[int] = field(default_factory=list)
    chain: list[Digest] = field(default_factory=list)
    """One digest per full block of tokens."""
    num_named: int = 0
    """Blocks that were offered to the cache by name."""

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - self.num_computed


class ScheduledChunk(NamedTuple):
    """The tokens of one call that a pass computes; a tuple, because each pass makes many."""

    call: SequenceState
    start: int
    """First token to compute."""
    end: int
    """Just after the last."""
    is_last: bool
    """The next token can be sampled after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPass:
    """The chunks that the next pass computes; without chunks there is nothing to compute now."""

    parts: tuple[ScheduledChunk, ...]
    stepped_back: tuple[str, ...] = ()
    """Calls that gave their blocks away and wait again."""


class BatchScheduler:
    """Decides which calls compute in the next pass: running ones first, then waiting ones."""

    def __init__(
        self,
        cache: BlockManager,
        *,
        block_tokens: int,
        capacity: int,
        prefill_tokens: int,
        root: Digest,
    ) -> None:
        self.cache = cache
        self.root = root
        """Begins every chain: what was computed under other weights has another."""
        self.running: list[SequenceState] = []
        self.waiting: deque[SequenceState] = deque()
        self._block_tokens = block_tokens
        self._capacity = capacity
        self._prefill_tokens = prefill_tokens

    def __iter__(self) -> Iterator[SequenceState]:
        yield from self.running
        yield from self.waiting

    def add(self, call: SequenceState) -> None:
        self.waiting.append(call)

    def remove(self, call: SequenceState) -> None:
        """The call is neither running nor waiting; its named blocks stay findable."""
        if call in self.running:
            self.running.remove(call)
        else:
            self.waiting.remove(call)
        self._drop(call)

    def restart(self, root: Digest) -> None:
        """Every call computes all of its tokens again, under chains that begin anew."""
        while self.running:
            self._step_back(self.running[-1])
        self.root = root
        for call in self.waiting:
            call.chain.clear()
        self.cache.forget()

    def follow(self, parts: Sequence[ScheduledChunk]) -> ScheduledPass | None:
        """The pass after one whose tokens are not known yet: each call goes one token further.

        None where a call that waits might start, or memory is short: a turn decides that, and a
        turn needs the tokens.
        """
        if self.waiting and len(self.running) < self._capacity:
            return None
        block_tokens = self._block_tokens
        # A token more needs a block more where those there are full.
        full = [part.call for part in parts if part.end >= len(part.call.blocks) * block_tokens]
        taken = self.cache.take(len(full))
        if taken is None:
            return None
        for call, block in zip(full, taken, strict=True):
            call.blocks.append(block)
        return ScheduledPass(
            parts=tuple([ScheduledChunk(call, end, end + 1, True) for call, _, end, _ in parts])
        )

    def turn(self) -> ScheduledPass:
        """Decides the next pass and takes its blocks; `done` must follow before the next turn."""
        back: list[str] = []
        parts: list[ScheduledChunk] = []
        room = self._prefill_tokens
        # A copy, because calls that step back leave the list.
        for call in list(self.running):
            count = 1 if call.num_missing == 1 else min(call.num_missing, room)
            if not count or (back and call not in self.running):
                continue
            if self._make_room(call, count, back):
                room -= count if call.num_missing > 1 else 0
                parts.append(_part(call, count))
        if not back:
            parts += self._admit(room)
        return ScheduledPass(parts=tuple(parts), stepped_back=tuple(back))

    def done(self, parts: Iterable[ScheduledChunk]) -> None:
        """These are computed: full blocks get their names."""
        for part in parts:
            call = part.call
            call.num_computed = part.end
            full = call.num_computed // self._block_tokens
            if full <= call.num_named:
                continue
            self._extend(call)
            for index in range(call.num_named, full):
                self.cache.name(call.blocks[index], call.chain[index])
            call.num_named = full

    def _make_room(self, call: SequenceState, count: int, back: list[str]) -> bool:
        """Whether the call has blocks for `count` more tokens, others having stepped back."""
        wanted = self._num_blocks(call.num_computed + count) - len(call.blocks)
        while wanted > 0:
            taken = self.cache.take(wanted)
            if taken is not None:
                call.blocks += taken
                return True
            youngest = self.running[-1]
            self._step_back(youngest)
            back.append(youngest.id)
            if youngest is call:
                return False
        return True

    def _admit(self, room: int) -> list[ScheduledChunk]:
        """Waiting calls that start now, with blocks for all they have."""
        parts: list[ScheduledChunk] = []
        shared = _unnamed(self.running)
        for call in list(self.waiting):
            if len(self.running) >= self._capacity or room <= 0:
                break
            self._extend(call)
            # The last token is always computed: sampling needs what comes out of it.
            findable = call.chain[: (len(call.tokens) - 1) // self._block_tokens]
            found = self.cache.find(findable)
            if len(found) < len(findable) and findable[len(found)] in shared:
                continue  # another call computes the same block now; a pass later it is found
            wanted = self._num_blocks(len(call.tokens)) - len(found)
            if wanted > self.cache.num_available - self.cache.num_kept_of(found):
                break
            self.cache.retain(found)
            call.blocks = found + (self.cache.take(wanted) or [])
            call.num_named = len(found)
            call.num_computed = len(found) * self._block_tokens
            self.waiting.remove(call)
            self.running.append(call)
            shared.update(call.chain[len(found) :])
            count = min(call.num_missing, room)
            room -= count
            parts.append(_part(call, count))
        return parts

    def _step_back(self, call: SequenceState) -> None:
        self.running.remove(call)
        self._drop(call)
        self.waiting.appendleft(call)

    def _drop(self, call: SequenceState) -> None:
        self.cache.release(call.blocks)
        call.blocks = []
        call.num_computed = 0
        call.num_named = 0

    def _extend(self, call: SequenceState) -> None:
        extend_chain(call.chain, call.tokens, root=self.root, block_tokens=self._block_tokens)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)


def _part(call: SequenceState, count: int) -> ScheduledChunk:
    end = call.num_computed + count
    return ScheduledChunk(
        call=call, start=call.num_computed, end=end, is_last=end == len(call.tokens)
    )


def _unnamed(calls: list[SequenceState]) -> set[Digest]:
    """Blocks of prompts that are being computed and cannot be found yet."""
    return {digest for call in calls for digest in call.chain[call.num_named :]}
