"""Blocks are never lost, never shared by accident, and found only for the tokens they hold."""

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from gyre.inference.engine.block_manager import BlockManager, extend_chain
from gyre.types.errors import InternalError


def chain_of(tokens, root=b"root", block_tokens=2):
    chain = []
    extend_chain(chain, array("i", tokens), root=root, block_tokens=block_tokens)
    return chain


def test_a_chain_has_one_digest_per_full_block_and_names_all_before_it():
    one = chain_of([1, 2, 3, 4, 5])

    assert 2 == len(one)
    assert {16} == {len(digest) for digest in one}
    assert one == chain_of([1, 2, 3, 4])
    assert one[0] == chain_of([1, 2, 9, 9])[0]
    assert one[1] != chain_of([9, 9, 3, 4])[1]
    assert one[0] != chain_of([1, 2], root=b"other")[0]


def test_a_chain_is_the_same_however_it_was_extended():
    tokens = array("i", range(20))
    chain = []
    for end in range(21):
        extend_chain(chain, tokens[:end], root=b"root", block_tokens=3)

    assert chain_of(range(20), block_tokens=3) == chain


def test_the_longest_known_beginning_is_found():
    cache, chain = BlockManager(4), chain_of(range(8))
    first, second, third = cache.take(3)
    cache.name(first, chain[0])
    cache.name(second, chain[1])
    cache.name(third, chain[3])

    assert [first, second] == cache.find(chain)
    assert [] == cache.find(chain[2:3])


def test_a_released_block_is_found_until_it_is_needed():
    cache, chain = BlockManager(2), chain_of(range(4))
    blocks = cache.take(2)
    for block, digest in zip(blocks, chain, strict=True):
        cache.name(block, digest)
    cache.release(blocks)

    assert 2 == cache.num_available
    assert blocks == cache.find(chain)
    assert blocks[1:] == cache.take(1), "the end of a prefix goes before its beginning"
    assert blocks[:1] == cache.find(chain)


def test_the_longest_unused_is_evicted_first():
    cache = BlockManager(3)
    chains = [chain_of([number, number]) for number in range(3)]
    blocks = cache.take(3)
    for block, (digest,) in zip(blocks, chains, strict=True):
        cache.name(block, digest)
        cache.release([block])
    cache.retain([blocks[0]])
    cache.release([blocks[0]])
    cache.take(1)

    assert [True, False, True] == [bool(cache.find(chain)) for chain in chains]


def test_too_many_blocks_are_refused_and_nothing_is_evicted():
    cache, (digest,) = BlockManager(2), chain_of([1, 2])
    held, kept = cache.take(2)
    cache.name(kept, digest)
    cache.release([kept])

    assert cache.take(2) is None
    assert [kept] == cache.find([digest])
    assert 1 == cache.references(held)


def test_of_two_blocks_with_one_content_the_first_stays_findable():
    cache, (digest,) = BlockManager(2), chain_of([1, 2])
    one, two = cache.take(2)
    cache.name(one, digest)
    cache.name(two, digest)
    cache.release([two])

    assert [one] == cache.find([digest])
    assert 0 == cache.num_kept


def test_a_free_block_can_be_neither_retained_nor_named():
    cache = BlockManager(2)
    with pytest.raises(InternalError):
        cache.retain([0])
    with pytest.raises(InternalError):
        cache.name(0, b"digest")

    assert 2 == cache.num_available


class CacheMachine(RuleBasedStateMachine):
    """Holders take, share, name and release blocks in any order; a ledger beside says who has what.

    A block's content is the digest it was last written for: to be found, it must still be that.
    """

    held = Bundle("held")

    @initialize(num_blocks=st.integers(1, 8))
    def begin(self, num_blocks):
        self.cache = BlockManager(num_blocks)
        self.holders = {}
        self.content = {}
        self.numbers = iter(range(10**6))

    def hold(self, blocks):
        number = next(self.numbers)
        self.holders[number] = list(blocks)
        return number

    @rule(target=held, count=st.integers(0, 4), first=st.integers(0, 3))
    def compute(self, count, first):
        """A call takes what is found of its tokens, and new blocks for the rest, and names them."""
        chain = chain_of([first] * 2 * count)
        found = self.cache.find(chain)
        assert [self.content[block] for block in found] == chain[: len(found)]
        kept = self.cache.num_kept_of(found)
        available = self.cache.num_available
        self.cache.retain(found)
        assert available - kept == self.cache.num_available
        taken = self.cache.take(count - len(found))
        if taken is None:
            assert count - len(found) > available - kept
            self.cache.release(found)
            return multiple()
        assert set(taken).isdisjoint(block for one in self.holders.values() for block in one)
        for block, digest in zip(taken, chain[len(found) :], strict=True):
            self.content[block] = digest
            self.cache.name(block, digest)
        return self.hold(found + taken)

    @rule(target=held, holder=held)
    def share(self, holder):
        if holder not in self.holders:
            return multiple()
        self.cache.retain(self.holders[holder])
        return self.hold(self.holders[holder])

    @rule(target=held, count=st.integers(0, 3))
    def take_unnamed(self, count):
        taken = self.cache.take(count)
        if taken is None:
            return multiple()
        for block in taken:
            self.content[block] = b"private"
        return self.hold(taken)

    @rule(holder=consumes(held))
    def release(self, holder):
        self.cache.release(self.holders.pop(holder))

    @rule()
    def forget(self):
        self.cache.forget()

        assert 0 == self.cache.num_kept

    @invariant()
    def every_block_is_counted_once(self):
        if not hasattr(self, "cache"):
            return
        counts = {}
        for blocks in self.holders.values():
            for block in blocks:
                counts[block] = counts.get(block, 0) + 1

        every = range(self.cache.num_blocks)
        assert {block: counts.get(block, 0) for block in every} == {
            block: self.cache.references(block) for block in every
        }
        assert self.cache.num_blocks - len(counts) == self.cache.num_available


TestCache = CacheMachine.TestCase
