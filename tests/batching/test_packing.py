"""Packing against a brute-force reading of what each token sees and each target is."""

from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.batching.packing import AdmittedExecution, pack
from gyre.trajectory.selection import Row
from gyre.types.errors import ConfigError, InternalError
from gyre.types.ids import CallId, ExecutionId


def row(ids, targets, logprobs=None, leaf=1):
    logprobs = [-0.5] * len(targets) if logprobs is None else logprobs
    return Row(
        leaf=CallId(leaf),
        role="main",
        ids=np.array(ids, dtype=np.int32),
        targets=np.array(targets, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        versions=None,
    )


def admitted(name, *rows, advantage=1.0):
    return AdmittedExecution(execution=ExecutionId(name), advantage=advantage, rows=rows)


def chain(start, length, prefix=()):
    """A row whose every token after the prefix is a target, with ids of its own."""
    ids = [*prefix, *range(start, start + length)]
    return row(ids, range(max(1, len(prefix)), len(ids)))


@st.composite
def batches(draw):
    """Few distinct ids, so that rows share by accident; no two targets have one log-probability."""
    number = count(1)
    found = []
    for name in draw(st.permutations("abcd"))[: draw(st.integers(0, 4))]:
        rows = []
        for leaf in range(draw(st.integers(0, 4))):
            ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
            places = st.sets(st.integers(1, len(ids) - 1)) if len(ids) > 1 else st.just(set())
            targets = sorted(draw(places))
            rows.append(row(ids, targets, [-float(next(number)) for _ in targets], leaf))
        found.append(admitted(name, *rows, advantage=draw(st.sampled_from([-1.0, 0.0, 0.5]))))
    return found


SETTINGS = st.fixed_dictionaries(
    {
        "pack_tokens": st.integers(1, 24),
        "claim_tokens": st.none() | st.integers(1, 40),
        "sharing": st.booleans(),
        "by_trajectory": st.booleans(),
    }
)


def path(one, index):
    """Ids that a packed token sees, itself included, by the definition of a pack."""
    return tuple(one.ids[k] for k in range(index + 1) if index < one.tout[k])


def given_targets(batch):
    """Every target that is trained: execution, leaf, what precedes it, label, log-probability."""
    return Counter(
        (one.execution, each.leaf, tuple(each.ids[:at]), each.ids[at], logprob)
        for one in batch
        if one.advantage != 0
        for each in one.rows
        for at, logprob in zip(each.targets, each.logprobs, strict=True)
    )


def packed_targets(claim, leaves=None):
    """The same, read back from the packs; the leaf by its log-probability, which is unique."""
    return Counter(
        (
            claim.shares[share].execution,
            leaves[behaviour] if leaves else None,
            path(one, predictor),
            label,
            behaviour,
        )
        for one in claim.packs
        for predictor, label, behaviour, share in zip(
            one.predictors, one.labels, one.behaviour, one.shares, strict=True
        )
    )


def leaves_of(batch):
    return {lp: each.leaf for one in batch for each in one.rows for lp in each.logprobs}


@given(batches(), SETTINGS)
def test_every_target_stands_once_after_what_preceded_it(batch, settings):
    """L01, L02, L06: one predictor may have several targets, each with its own log-probability."""
    leaves = leaves_of(batch)
    packing = pack(batch, **settings)
    found = sum((packed_targets(claim, leaves) for claim in packing.claims), Counter())

    assert given_targets(batch) == found
    assert found.total() == packing.num_targets


def held_rows(batch, one):
    """What the rows with targets in a pack need of their ids, as tuples."""
    found = set(one.behaviour.tolist())
    rows = [each for admitted in batch for each in admitted.rows]
    return [
        tuple(each.ids[: each.targets[-1]].tolist())
        for each in rows
        if found & set(each.logprobs.tolist())
    ]


def packs_of(packing):
    return [one for claim in packing.claims for one in claim.packs]


@given(batches(), SETTINGS)
def test_a_token_sees_one_path_with_its_positions(batch, settings):
    """L07: nothing of another row is seen beyond a prefix that is truly the same."""
    for one in packs_of(pack(batch, **settings)):
        rows = held_rows(batch, one)
        expected = [each[:end] for each in rows for end in range(1, len(each) + 1)]
        paths = [path(one, index) for index in range(one.num_tokens)]

        assert Counter(set(expected) if settings["sharing"] else expected) == Counter(paths)
        assert [len(each) - 1 for each in paths] == one.positions.tolist()
        assert sum(map(len, paths)) == one.num_pairs
        assert sorted(one.predictors) == one.predictors.tolist()


@given(batches(), SETTINGS)
def test_a_claim_holds_whole_executions_within_its_budget(batch, settings):
    """L08 in part: what has no advantage or no targets has no tokens."""
    packing = pack(batch, **settings)
    budget = settings["claim_tokens"] or 4 * settings["pack_tokens"]
    trained = [one for one in batch if one.advantage != 0 and any(len(r.targets) for r in one.rows)]
    names = [share.execution for claim in packing.claims for share in claim.shares]
    claimed = [{share.execution for share in claim.shares} for claim in packing.claims]

    assert sorted(one.execution for one in trained) == sorted(set(names))
    assert len(set(names)) == sum(map(len, claimed))
    for claim, executions in zip(packing.claims, claimed, strict=True):
        tokens = sum(one.num_tokens for one in claim.packs)
        assert claim.oversize == (tokens > budget)
        assert len(executions) == 1 or not claim.oversize
        longest = max(len(each) for one in claim.packs for each in held_rows(batch, one))
        for one in claim.packs:
            assert one.num_tokens <= max(settings["pack_tokens"], longest)


@given(batches(), SETTINGS)
def test_shares_say_whose_targets_they_are_and_how_many(batch, settings):
    """A share is an execution, or each of its trajectories that has targets (SPEC 8.4)."""
    shares = [share for claim in pack(batch, **settings).claims for share in claim.shares]
    expected = [
        (one.execution, one.advantage, each.leaf, len(each.targets))
        for one in batch
        if one.advantage != 0
        for each in one.rows
        if len(each.targets)
    ]
    if not settings["by_trajectory"]:
        totals = Counter()
        for execution, advantage, _, num_targets in expected:
            totals[execution, advantage] += num_targets
        expected = [(*one, None, num_targets) for one, num_targets in totals.items()]

    assert sorted(expected) == sorted(
        (one.execution, one.advantage, one.trajectory, one.num_targets) for one in shares
    )


@given(batches(), SETTINGS, st.randoms(use_true_random=False))
def test_no_order_of_rows_or_executions_changes_what_is_trained(batch, settings, random):
    """L07: targets and what precedes each, whatever the order that packs them."""
    leaves = leaves_of(batch)
    mixed = [
        admitted(one.execution, *random.sample(one.rows, len(one.rows)), advantage=one.advantage)
        for one in random.sample(batch, len(batch))
    ]
    once, again = (
        sum((packed_targets(claim, leaves) for claim in pack(one, **settings).claims), Counter())
        for one in (batch, mixed)
    )

    assert once == again


FIELDS = ["ids", "positions", "tout", "predictors", "labels", "behaviour", "shares"]


def arrays(packing):
    return [getattr(one, name) for one in packs_of(packing) for name in FIELDS]


@given(batches(), SETTINGS)
def test_packing_twice_gives_the_same_and_leaves_its_input_alone(batch, settings):
    """L09: neither result is a view of what was given or of the other."""
    given_arrays = [a for o in batch for r in o.rows for a in (r.ids, r.targets, r.logprobs)]
    before = [one.copy() for one in given_arrays]
    first, second = pack(batch, **settings), pack(batch, **settings)

    assert [one.shares for one in first.claims] == [one.shares for one in second.claims]
    assert [one.tobytes() for one in arrays(first)] == [one.tobytes() for one in arrays(second)]
    assert [one.tobytes() for one in before] == [one.tobytes() for one in given_arrays]
    for made in arrays(first):
        assert made.dtype in (np.int32, np.float32)
        assert not any(np.shares_memory(made, one) for one in given_arrays + arrays(second))


def sizes(packing):
    """Per claim, the tokens of its packs."""
    return [[one.num_tokens for one in claim.packs] for claim in packing.claims]


def names(packing):
    return ["".join(share.execution for share in claim.shares) for claim in packing.claims]


def test_a_tree_is_laid_depth_first_with_each_prefix_once():
    tree = admitted("a", row([9, 6], [1]), row([7, 8, 1, 2], [2, 3]), row([7, 8, 3, 4, 5], [4]))
    packing = pack([tree], pack_tokens=100, sharing=True)
    ((one,),) = [claim.packs for claim in packing.claims]

    assert [7, 8, 1, 3, 4, 9] == one.ids.tolist()
    assert [0, 1, 2, 2, 3, 0] == one.positions.tolist()
    assert [5, 5, 3, 5, 5, 6] == one.tout.tolist()
    assert [1, 2, 4, 5] == one.predictors.tolist()
    assert [1, 2, 5, 6] == one.labels.tolist()
    assert (6, 8, 14) == (packing.num_tokens, packing.row_tokens, packing.num_pairs)


def test_rows_are_laid_end_to_end_in_their_order():
    rows = admitted("a", row([9, 6], [1]), row([7, 8, 1, 2], [2, 3]), row([7, 8, 3, 4, 5], [4]))
    packing = pack([rows], pack_tokens=100, sharing=False)
    ((one,),) = [claim.packs for claim in packing.claims]

    assert [9, 7, 8, 1, 7, 8, 3, 4] == one.ids.tolist()
    assert [0, 0, 1, 2, 0, 1, 2, 3] == one.positions.tolist()
    assert [1, 4, 4, 4, 8, 8, 8, 8] == one.tout.tolist()
    assert [0, 2, 3, 7] == one.predictors.tolist()
    assert packing.row_tokens == packing.num_tokens


def test_siblings_after_one_prompt_share_their_predictor():
    """L06: the same reply sampled twice is two targets, each with its own log-probability."""
    siblings = [row([1, 2, reply], [2], [lp]) for reply, lp in ((5, -1.0), (6, -2.0), (5, -3.0))]
    (claim,) = pack([admitted("a", *siblings)], pack_tokens=100, sharing=True).claims
    (one,) = claim.packs

    assert [1, 2] == one.ids.tolist()
    assert [1, 1, 1] == one.predictors.tolist()
    assert [(5, -1.0), (5, -3.0), (6, -2.0)] == sorted(
        zip(one.labels.tolist(), one.behaviour.tolist(), strict=True),
        key=lambda each: (each[0], -each[1]),
    )
    assert 3 == claim.shares[0].num_targets


def test_a_token_that_one_row_targets_and_another_shares_is_a_target_once():
    """L02: whichever row carries it, the pack is the same."""
    first = admitted("a", row([1, 2, 3, 4], [1, 2, 3]), row([1, 2, 3, 5], [3]))
    second = admitted("a", row([1, 2, 3, 4], [3]), row([1, 2, 3, 5], [1, 2, 3]))
    one, two = (pack([each], pack_tokens=100, sharing=True) for each in (first, second))

    for each in (one, two):
        (made,) = packs_of(each)
        assert [1, 2, 3] == made.ids.tolist()
        targets = zip(made.predictors.tolist(), made.labels.tolist(), strict=True)
        assert [(0, 2), (1, 3), (2, 4), (2, 5)] == sorted(targets)


def test_executions_of_a_group_share_their_prompt():
    prompt = range(100, 150)
    group = [admitted(name, chain(1000 * at, 10, prompt)) for at, name in enumerate("abcd", 1)]

    assert [[50 + 4 * 9]] == sizes(pack(group, pack_tokens=100, sharing=True))
    assert [[59, 59, 59, 59]] == sizes(pack(group, pack_tokens=100, sharing=False))


def test_room_goes_to_the_largest_execution_that_fits():
    lengths = {"a": 61, "b": 51, "c": 11, "d": 31, "e": 41}
    batch = [admitted(name, chain(1000 * ord(name), size)) for name, size in lengths.items()]
    packing = pack(batch, pack_tokens=100, sharing=True)

    assert [[100, 90]] == sizes(packing)
    assert ["abcde"] == names(packing)
    assert {0, 4} == set(packing.claims[0].packs[0].shares.tolist())


def test_a_claim_ends_at_its_budget_and_the_oldest_begins_the_next():
    batch = [admitted(name, chain(1000 * ord(name), 81)) for name in "abcdefg"]
    packing = pack(batch, pack_tokens=100, sharing=True, claim_tokens=300)

    assert [[80] * 3, [80] * 3, [80]] == sizes(packing)
    assert ["abc", "def", "g"] == names(packing)


def test_room_in_packs_is_filled_only_up_to_the_claim_budget():
    spread = admitted("a", *[chain(1000 * at, 71) for at in range(1, 6)])
    small = [admitted(name, chain(1000 * ord(name), 31)) for name in "bcd"]
    packing = pack([spread, *small], pack_tokens=100, sharing=True)

    assert [[100, 70, 70, 70, 70], [60]] == sizes(packing)
    assert ["ab", "cd"] == names(packing)


def test_a_large_execution_is_spread_where_least_is_repeated():
    """Two pairs of branches: each pair stays together, the trunk is repeated."""
    trunk = range(10)
    left, right = [*trunk, *range(100, 120)], [*trunk, *range(200, 220)]
    branches = [chain(1000 * at, 11, stem) for at, stem in enumerate([left, right, left, right], 1)]
    packing = pack([admitted("a", *branches)], pack_tokens=60, sharing=True)

    assert [[50, 50]] == sizes(packing)
    assert [44] == [share.num_targets for share in packing.claims[0].shares]
    assert not packing.claims[0].oversize


def test_an_execution_over_the_claim_budget_is_alone_and_scored_first():
    large = admitted("b", *[chain(1000 * at, 91) for at in range(1, 6)])
    batch = [admitted("a", chain(10_000, 6)), large, admitted("c", chain(20_000, 6))]
    packing = pack(batch, pack_tokens=100, sharing=True)

    assert ["ac", "b"] == names(packing)
    assert [[10], [90] * 5] == sizes(packing)
    assert [False, True] == [claim.oversize for claim in packing.claims]


def test_a_row_longer_than_a_pack_has_one_of_its_own_and_sets_the_size_of_its_others():
    long = admitted("a", chain(0, 151), chain(1000, 71), chain(2000, 71))
    packing = pack([long, admitted("b", chain(3000, 6))], pack_tokens=100, sharing=True)

    assert [[150, 140, 5]] == sizes(packing)


def test_without_advantages_or_targets_there_is_nothing_to_do():
    nothing = pack(
        [admitted("a", chain(0, 5), advantage=0.0), admitted("b", row([1, 2], [])), admitted("c")],
        pack_tokens=10,
        sharing=True,
    )

    assert () == nothing.claims
    assert (0, 0, 0, 0) == (
        nothing.num_tokens,
        nothing.num_targets,
        nothing.row_tokens,
        nothing.num_pairs,
    )


def test_a_row_ends_before_its_last_target():
    (one,) = packs_of(pack([admitted("a", row(range(9), [2, 4]))], pack_tokens=100, sharing=True))

    assert [0, 1, 2, 3] == one.ids.tolist()
    assert [2, 4] == one.labels.tolist()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (admitted("x", row([1, 2], [0, 1])), "x, leaf 1: a target at 0 has no token before it"),
        (admitted("x", row([1, 2], [2])), "targets do not increase within 2 tokens"),
        (admitted("x", row([1, 2, 3], [2, 1])), "targets do not increase within 3 tokens"),
        (admitted("x", row([1, 2, 3], [1, 1])), "targets do not increase within 3 tokens"),
        (admitted("x", row([1, 2], [1], [])), "1 targets have 0 log-probabilities"),
        (admitted("x", chain(0, 3), advantage=float("nan")), "its advantage is nan"),
        (admitted("a", chain(0, 3)), "executions given twice: a"),
    ],
)
def test_what_cannot_be_is_named(bad, said):
    with pytest.raises(InternalError, match=said):
        pack([admitted("a", chain(0, 3)), bad], pack_tokens=10, sharing=True)


@pytest.mark.parametrize("budgets", [{"pack_tokens": 0}, {"pack_tokens": 9, "claim_tokens": 0}])
def test_a_budget_of_nothing_is_refused(budgets):
    with pytest.raises(ConfigError, match="hold none"):
        pack([], sharing=True, **budgets)


def test_long_paths_of_many_rows_are_packed_whole():
    """A trunk of 100,000 tokens with a branch from every thousandth: each token once."""
    trunk = np.arange(100_000, dtype=np.int32)
    cuts = range(1000, 100_001, 1000)
    rows = [
        row(
            np.concatenate([trunk[:cut], np.arange(500, dtype=np.int32) + 200_000]),
            range(cut, cut + 500),
        )
        for cut in cuts
    ]
    packing = pack([admitted("a", *rows)], pack_tokens=200_000, sharing=True)
    (one,) = packs_of(packing)

    assert 100_000 + 100 * 499 == one.num_tokens
    assert sum(len(each.ids) - 1 for each in rows) == packing.row_tokens
    assert 50_000 == one.num_targets
    depths = np.concatenate([each.targets - 1 for each in rows])
    assert sorted(depths) == sorted(one.positions[one.predictors])
    after = one.predictors[one.labels > 200_000]
    assert (one.ids[after] == one.labels[one.labels > 200_000] - 1).all()
