"""Which calls reference which cache block; reuse by content, and eviction of the oldest.

Rule 1: a block is free, kept (no call's, but findable) or referenced; only free ones are allocated.
Rule 2: what is found under a digest was computed from exactly the tokens that the digest names.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from gyre.types.errors import InternalError

Digest = bytes


def extend_chain(
    chain: list[Digest], tokens: "array[int]", *, root: Digest, block_tokens: int
) -> None:
    """Brings the chain up to one digest per full block of tokens, each naming all before it too."""
    for start in range(len(chain) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        before = chain[-1] if chain else root
        inside = tokens[start : start + block_tokens].tobytes()
        chain.append(blake2b(before + inside, digest_size=16).digest())


class BlockManager:
    """Allocates, shares and evicts the cache blocks of one KvCache, by number."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Findable blocks that no call references, longest unused first."""
        self._references: dict[int, int] = {}
        self._found: dict[Digest, int] = {}
        self._names: dict[int, Digest] = {}

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out, free or kept."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def references(self, block: int) -> int:
        return self._references.get(block, 0)

    def find(self, chain: Sequence[Digest]) -> list[int]:
        """Blocks of the longest known beginning of the chain; references nothing."""
        found: list[int] = []
        for digest in chain:
            block = self._found.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_kept_of(self, blocks: Iterable[int]) -> int:
        """How many of the blocks are kept: retaining them makes that many fewer available."""
        return sum(block in self._kept for block in blocks)

    def retain(self, blocks: Iterable[int]) -> None:
        """One more reference to each block, which must be referenced or kept."""
        for block in blocks:
            if block in self._kept:
                del self._kept[block]
            elif block not in self._references:
                raise InternalError(f"block {block} is free and cannot be retained")
            self._references[block] = self._references.get(block, 0) + 1

    def take(self, count: int) -> list[int] | None:
        """New blocks with one reference each, evicting kept ones if need be; None: not so many."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            block, _ = self._kept.popitem(last=False)
            del self._found[self._names.pop(block)]
            self._free.append(block)
        taken = [self._free.pop() for _ in range(count)]
        self._references.update(dict.fromkeys(taken, 1))
        return taken

    def name(self, block: int, digest: Digest) -> None:
        """Makes a referenced, filled block findable; of two with one content the first stays it."""
        if block not in self._references:
            raise InternalError(f"block {block} is nobody's and cannot be named")
        if block not in self._names and digest not in self._found:
            self._found[digest] = block
            self._names[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """One reference fewer to each; of blocks that follow each other the last are evicted first.

        A prefix is of use without what followed it, and not the other way round.
        """
        for block in reversed(blocks):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
                continue
            del self._references[block]
            if block in self._names:
                self._kept[block] = None
            else:
                self._free.append(block)

    def forget(self) -> None:
        """Nothing is findable any more; references stay."""
        self._free += self._kept
        self._kept.clear()
        self._found.clear()
        self._names.clear()
