"""Ids as JSON text, written once however often a prompt grows."""

import json
from array import array

from hypothesis import given
from hypothesis import strategies as st

from gyre.inference.clients.http import FEWEST_IDS, PromptTextCache


def raw(ids):
    return array("i", ids).tobytes()


def read(text):
    return json.loads(b"[" + text + b"]")


def test_a_growing_prompt_is_written_as_it_is():
    asked = PromptTextCache()
    ids = list(range(FEWEST_IDS))
    for more in ([], [7], [], [151_645, 0, 2**31 - 1]):
        ids += more
        assert ids == read(asked.text("x", raw(ids)))


def test_prompts_that_leave_the_last_one_are_written_anew():
    asked = PromptTextCache()
    ids = list(range(FEWEST_IDS + 10))
    asked.text("x", raw(ids))

    assert ids[:-5] == read(asked.text("x", raw(ids[:-5])))
    assert [9, *ids] == read(asked.text("x", raw([9, *ids])))
    assert ids == read(asked.text("y", raw(ids)))


def test_little_memory_still_gives_the_right_text():
    asked = PromptTextCache(most_bytes=1)
    ids = list(range(FEWEST_IDS))

    assert ids == read(asked.text("x", raw(ids)))
    assert [*ids, 5] == read(asked.text("x", raw([*ids, 5])))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["x", "y"]), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=3)
        ),
        max_size=12,
    )
)
def test_any_sequence_of_prompts(steps):
    """Agents of two executions that grow, shrink and alternate."""
    asked = PromptTextCache(most_bytes=500_000)
    prompts = {}
    for execution, agent, more in steps:
        start = [agent] * FEWEST_IDS
        prompts[execution, agent] = prompts.get((execution, agent), start) + more
        ids = prompts[execution, agent]
        assert ids == read(asked.text(execution, raw(ids)))


def test_no_prompt_is_no_text():
    assert b"" == PromptTextCache().text("x", b"")
