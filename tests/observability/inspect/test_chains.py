"""Chains hold every call once, whatever the shape of the tree."""

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from gyre.observability.inspect.tree_layout import roots
from gyre.observability.inspect.tree_summary import shares


def chains_of(trunk):
    for chain in trunk:
        yield chain
        for side in chain.sides:
            yield from chains_of(side)


def all_chains(tree):
    return [chain for root in roots(tree) for trunk in root.trunks for chain in chains_of(trunk)]


def depth_of(trunk):
    """Columns that its drawing takes."""
    sides = [depth_of(side) for chain in trunk for side in chain.sides]
    return 1 + max(sides, default=0)


def test_calls_that_simply_extend_each_other_are_one_chain(make_story):
    history = make_story()
    at = history.call(1, 0, {"system": 3}, 2)
    for number in range(2, 1001):
        at = history.call(number, at, {"user": 1}, 2)
    (chain,) = all_chains(history.tree)

    assert list(range(1, 1001)) == [node.id for node in chain.calls]
    assert (0, 3 + 999 + 1000, 2000) == (
        chain.shared_tokens,
        chain.new_tokens,
        chain.output_tokens,
    )


def test_a_chain_ends_where_role_agent_or_commitment_change(make_story):
    history = make_story()
    one = history.call(1, 0, {"system": 3}, 2)
    two = history.call(2, one, {"user": 1}, 2, role="sub-agent", agent="a")
    three = history.call(3, two, {"user": 1}, 2, role="sub-agent", agent="b")
    four = history.call(4, three, {"user": 1}, 2, role="sub-agent", agent="b", fork="rerendered")
    history.call(5, four, {"user": 1}, 2, role="sub-agent", agent="b", commit=False)

    assert [1, 1, 1, 1, 1] == [len(chain.calls) for chain in all_chains(history.tree)]


def test_the_trunk_goes_on_in_the_same_role_even_if_the_other_is_longer(make_story):
    history = make_story()
    one = history.call(1, 0, {"system": 3}, 2)
    two = history.call(2, one, {"user": 1}, 2, role="sub-agent", agent="a")
    history.call(3, two, {"user": 1}, 2, role="sub-agent", agent="a")
    history.call(4, one, {"user": 2}, 2)
    ((root,), (trunk,)) = (roots(history.tree), roots(history.tree)[0].trunks)

    assert [[1], [4]] == [[node.id for node in chain.calls] for chain in trunk]
    assert [[2, 3]] == [[node.id for node in side[0].calls] for side in trunk[0].sides]
    assert 3 == root.tokens


def test_a_fork_at_every_call_neither_nests_nor_recurses(make_story):
    history = make_story()
    at = history.call(1, 0, {"system": 3}, 2)
    for number in range(2, 4000, 2):
        history.call(number, at, {"user": 1}, 1)
        at = history.call(number + 1, at, {"user": 1}, 2, fork="branch")
    ((trunk,),) = [root.trunks for root in roots(history.tree)]

    assert 2 == depth_of(trunk)
    assert 2000 == len(trunk)


@given(st.data())
def test_any_tree_is_cut_into_chains_without_loss(make_story, data):
    history = make_story()
    replies = [0]
    many = data.draw(st.integers(1, 40))
    for number in range(1, many + 1):
        under = data.draw(st.sampled_from(replies))
        inputs = {"user": data.draw(st.integers(1, 5))}
        replies.append(history.call(number, under, inputs, data.draw(st.integers(1, 5))))
    tree = history.tree
    chains = all_chains(tree)

    assert list(range(1, many + 1)) == sorted(node.id for chain in chains for node in chain.calls)
    assert tree.num_tokens == sum(chain.new_tokens + chain.output_tokens for chain in chains)
    for root in roots(tree):
        assert 1 + log2(many) >= max(map(depth_of, root.trunks))
    for call, share in shares(tree).items():
        assert len(tree.prompt_ids(call)) == share.shared_tokens + share.new_tokens


def test_trimmed_tokens_are_not_counted_as_shared(make_story):
    """T05: what the next turn drops is not part of its prompt."""
    history = make_story()
    one = history.call(1, 0, {"system": 10}, 5)
    history.call(2, one, {}, 5, trim=1)
    shared = shares(history.tree)[2]

    assert (15, 1) == (shared.shared_tokens, shared.new_tokens)
    assert 16 == len(history.tree.prompt_ids(2))
