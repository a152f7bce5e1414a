"""A group becomes claims: what is drawn of its logs, with its advantages, and nothing else."""

from dataclasses import replace

import pytest
from tests.observability.conftest import Story

from gyre.batching.group_buffer import ReadyGroup
from gyre.batching.group_packer import ClosedExecution, GroupPacker, mean_reward, unpacked
from gyre.storage import call_log

REWARDS = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.5}


def history(name, turns):
    found = Story(execution=name)
    under = 0
    for number in range(1, turns + 1):
        inputs = {"system": [1, 2, 3], "user": [4, 5]} if number == 1 else {"tool": 2}
        under = found.call(number, under, inputs, 6)
    found.seal()
    return found


@pytest.fixture
def packer(tmp_path):
    for turns, name in enumerate("abc", start=1):
        history(name, turns).write(tmp_path)
    return GroupPacker(
        folder=tmp_path,
        seed=0,
        max_trajectories=5,
        pack_tokens=4096,
        claim_packs=1,
        divide_by_std=True,
        by_trajectory=False,
        shuffle_rewards=False,
    )


def group(*members, is_void=False):
    kept = tuple(
        None if name is None else ClosedExecution(execution=name, reward=REWARDS[name])
        for name in members
    )
    return ReadyGroup(number=7, version=0, kept=kept, is_void=is_void)


def shares(made):
    return {
        one.execution: (round(one.advantage, 4), one.num_targets)
        for claim in made.claims
        for one in unpacked(claim.data).shares
    }


def test_each_execution_has_its_advantage_and_every_target_of_its_draw(packer):
    made = packer(group("a", "b", "c"))

    assert {"a": (1.4142, 6), "b": (-0.7071, 12), "c": (-0.7071, 18)} == shares(made)
    assert (3, 36) == (made.num_trajectories, made.num_targets)
    assert sum(one.num_tokens for one in made.claims) == made.num_tokens <= made.row_tokens


def test_what_was_excluded_is_out_of_the_mean_and_has_no_tokens(packer):
    """SPEC 6.3."""
    assert {"a": (1.0, 6), "b": (-1.0, 12)} == shares(packer(group("a", "b", None)))


def test_a_placeholder_counts_and_has_no_tokens(packer):
    """SPEC 6.4: "d" never wrote a log."""
    assert {"a", "b"} == set(shares(packer(group("a", "b", "d"))))
    assert (1.2247, 6) == shares(packer(group("a", "b", "d")))["a"]


@pytest.mark.parametrize("given", [("b", "c"), ("a",), ()])
def test_equal_rewards_or_too_few_cost_nothing(packer, given):
    """SPEC 7.3."""
    made = packer(group(*given))

    assert ((), 0, 0) == (made.claims, made.num_tokens, made.num_trajectories)


def test_a_void_group_becomes_no_claim(packer):
    assert () == packer(group("a", "b", is_void=True)).claims


def test_the_same_group_gives_the_same_bytes(packer):
    assert packer(group("a", "b", "c")) == packer(group("a", "b", "c"))


def test_small_claims_hold_whole_executions(packer):
    """SPEC 3.2: an execution over the budget has a claim of its own, which is scored first."""
    made = replace(packer, pack_tokens=24)(group("a", "b", "c"))
    held = [{one.execution for one in unpacked(claim.data).shares} for claim in made.claims]

    assert [({"a", "b"}, False), ({"c"}, True)] == sorted(
        zip(held, (one.oversize for one in made.claims), strict=True), key=lambda one: min(one[0])
    )


def test_shuffled_rewards_are_the_same_rewards_at_other_places(packer):
    found = [
        shares(replace(packer, shuffle_rewards=True, seed=seed)(group("a", "b", "c")))
        for seed in range(8)
    ]

    assert all([-0.7071, -0.7071, 1.4142] == sorted(x for x, _ in one.values()) for one in found)
    assert {"a", "b", "c"} == {max(one, key=lambda name: one[name][0]) for one in found}


def test_the_mean_reward_is_over_what_counts():
    groups = [group("a", None, "d"), group("b")]

    assert 0.5 == mean_reward(groups)
    assert mean_reward([group(None)]) is None


def test_an_execution_whose_log_is_damaged_counts_and_has_no_targets(packer):
    """SPEC 7.3, 10: it is named, and the others of its group are trained as they would be."""
    path = call_log.path_of(packer.folder, "b")
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)
    made = packer(group("a", "b", "c"))

    assert {"a": (1.4142, 6), "c": (-0.7071, 18)} == shares(made)
    assert ["b"] == list(made.damaged)
    assert str(path) in made.damaged["b"]


def test_a_claim_says_whose_it_is(packer):
    (claim,) = packer(group("a", "b", "c")).claims

    assert claim.shares == tuple(one.execution for one in unpacked(claim.data).shares)
