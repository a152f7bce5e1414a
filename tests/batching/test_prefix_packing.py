"""Paths side by side against sets of prefixes and every way to cut."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.batching.packing import Forest, common_prefix

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=6)


def arrays(paths):
    return [np.array(path, dtype=np.int32) for path in paths]


def prefixes(paths):
    return {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}


def chosen(forest, paths, ranks):
    return [paths[forest.order[rank]] for rank in ranks]


def ranks_of(forest):
    return np.arange(len(forest.order))


@given(PATHS, st.data())
def test_any_choice_has_as_many_tokens_as_distinct_prefixes(paths, data):
    forest = Forest(arrays(paths), sharing=True)
    ranks = sorted(data.draw(st.sets(st.integers(0, len(paths) - 1), min_size=1)))

    assert sorted(range(len(paths))) == sorted(forest.order)
    assert len(prefixes(chosen(forest, paths, ranks))) == forest.num_tokens(np.array(ranks))


@given(PATHS)
def test_without_sharing_paths_stay_in_order_and_count_in_full(paths):
    forest = Forest(arrays(paths), sharing=False)

    assert tuple(range(len(paths))) == forest.order
    assert sum(map(len, paths)) == forest.num_tokens(ranks_of(forest))


@given(PATHS, st.integers(1, 20), st.booleans())
def test_a_split_has_the_fewest_tokens_and_then_the_fewest_parts(paths, most_tokens, sharing):
    forest = Forest(arrays(paths), sharing=sharing)
    ranks = ranks_of(forest)

    def cost(parts):
        if any(len(part) > 1 and forest.num_tokens(part) > most_tokens for part in parts):
            return None
        return sum(map(forest.num_tokens, parts)), len(parts)

    cuts = [cut for n in range(len(ranks)) for cut in combinations(range(1, len(ranks)), n)]
    costs = [cost(np.split(ranks, cut)) for cut in cuts]
    parts = forest.split(ranks, most_tokens)

    assert ranks.tolist() == np.concatenate(parts).tolist()
    assert min(one for one in costs if one is not None) == cost(parts)


@given(PATHS, st.booleans(), st.data())
def test_each_token_sees_its_own_path_and_nothing_else(paths, sharing, data):
    forest = Forest(arrays(paths), sharing=sharing)
    ranks = sorted(data.draw(st.sets(st.integers(0, len(paths) - 1), min_size=1)))
    held = chosen(forest, paths, ranks)
    asked = [np.arange(len(path), dtype=np.int32) for path in held]
    laid = forest.lay(np.array(ranks), asked)
    seen = [
        [k for k in range(len(laid.ids)) if k <= q < laid.tout[k]] for q in range(len(laid.ids))
    ]

    expected = [tuple(path[:end]) for path in held for end in range(1, len(path) + 1)]
    assert sorted(set(expected) if sharing else expected) == sorted(
        tuple(laid.ids[one].tolist()) for one in seen
    )
    assert [list(range(len(one))) for one in seen] == [laid.positions[one].tolist() for one in seen]
    for path, places in zip(held, laid.asked, strict=True):
        assert path == laid.ids[places].tolist()
        assert places.tolist() == seen[places[-1]]


def test_long_paths_differ_where_they_differ():
    """Around the widths that are compared at once."""
    path = np.arange(1000, dtype=np.int32)
    for at in (0, 1, 63, 64, 65, 191, 192, 193, 447, 448, 999):
        other = path.copy()
        other[at] = -1
        assert at == common_prefix(path, other)
    assert 700 == common_prefix(path, path[:700])
    assert 0 == common_prefix(path, path[:0])
