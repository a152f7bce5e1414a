"""The numbers of an execution, against what a reader would count by hand."""

from gyre.observability.inspect.tree_summary import candidates, shares, summary


def test_the_numbers_of_an_execution(errand):
    errand.seal()
    found = summary(errand.tree, execution="x")

    assert (11, 10, 1, 1) == (found.calls, found.committed, found.failed, found.unfinished)
    assert (True, False) == (found.sealed, found.complete)
    assert (3, {"main": 2, "main-summary": 1, "sub-agent": 1}) == (found.roots, found.leaves)
    assert 150 == found.output_tokens
    # All but the uncommitted reply, five tokens of a cut one, and the side call's.
    assert 150 - 7 - 5 - 2 == found.targets
    assert found.unique_tokens == errand.tree.num_tokens
    assert found.sent_tokens == sum(len(errand.tree.prompt_ids(call)) for call in errand.tree.calls)


def test_an_empty_tree_has_no_ratio(make_story):
    assert None is summary(make_story().tree, execution="x").ratio


def test_a_retry_shares_the_whole_prompt_but_its_last_token(errand):
    added = shares(errand.tree)

    assert (207, 1) == (added[4].shared_tokens, added[4].new_tokens)
    assert len(errand.tree.prompt_ids(3)) == added[4].shared_tokens + 1


def test_a_shared_call_is_a_target_of_the_leaf_that_is_drawn_first(errand):
    found = {one.call: one for one in candidates(errand.tree, "x")}

    assert [6, 8, 9, 10] == list(found)
    assert {1: 10, 2: 9, 3: 8, 4: 6} == {one.drawn: call for call, one in found.items()}
    assert (63 + 25, 25) == (found[8].targets, found[8].drawn_targets)


def test_leaves_beyond_the_most_that_are_drawn_are_listed_all_the_same(make_story):
    history = make_story()
    for number in range(1, 8):
        history.call(number, 0, {"system": 1}, 2)
    found = candidates(history.tree, "x")

    assert [1, 2, 3, 4, 5] == sorted(one.drawn for one in found if one.drawn)
    assert [0, 0] == [one.drawn_targets for one in found if one.drawn is None]
