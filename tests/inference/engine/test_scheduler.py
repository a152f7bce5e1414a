"""Who computes what: prompts in chunks, samplers always, the youngest back first."""

from array import array

from gyre.inference.engine.block_manager import BlockManager
from gyre.inference.engine.scheduler import BatchScheduler, SequenceState

BLOCK = 4


def batch(num_blocks=100, *, capacity=8, prefill_tokens=10):
    return BatchScheduler(
        BlockManager(num_blocks),
        block_tokens=BLOCK,
        capacity=capacity,
        prefill_tokens=prefill_tokens,
        root=b"",
    )


def call(name, length, first=None):
    first = 1000 * ord(name[0]) if first is None else first
    return SequenceState(id=name, tokens=array("i", range(first, first + length)))


def step(of):
    """One turn, after which every call that could has sampled a token."""
    turn = of.turn()
    of.done(turn.parts)
    for part in turn.parts:
        if part.is_last:
            part.call.tokens.append(7)
    return {part.call.id: part.end - part.start for part in turn.parts}


def test_a_long_prompt_is_computed_in_chunks():
    of = batch()
    of.add(call("a", 25))

    assert [{"a": 10}, {"a": 10}, {"a": 5}, {"a": 1}] == [step(of) for _ in range(4)]


def test_calls_that_sample_go_on_beside_a_long_prompt():
    of = batch()
    of.add(call("a", 3))
    step(of)
    of.add(call("b", 25))

    assert [{"a": 1, "b": 10}, {"a": 1, "b": 10}, {"a": 1, "b": 5}, {"a": 1, "b": 1}] == [
        step(of) for _ in range(4)
    ]


def test_short_prompts_share_a_pass():
    of = batch()
    for name, length in (("a", 3), ("b", 4), ("c", 8)):
        of.add(call(name, length))

    assert {"a": 3, "b": 4, "c": 3} == step(of)
    assert {"a": 1, "b": 1, "c": 5} == step(of)


def test_no_more_calls_run_than_may():
    of = batch(capacity=2)
    calls = [call(name, 2) for name in "abc"]
    for one in calls:
        of.add(one)

    assert {"a": 2, "b": 2} == step(of)
    of.remove(calls[0])
    assert {"b": 1, "c": 2} == step(of)


def test_a_call_without_room_waits_and_is_not_overtaken():
    of = batch(num_blocks=4)
    big, huge, small = call("big", 8), call("huge", 12), call("small", 2)
    for one in (big, huge, small):
        of.add(one)

    assert {"big": 8} == step(of)
    assert {"big": 1} == step(of)
    assert [huge, small] == list(of.waiting)


def test_the_youngest_steps_back_and_computes_again_later():
    of = batch(num_blocks=3)
    old, young = call("old", 7), call("young", 3)
    of.add(old)
    of.add(young)
    assert {"old": 7, "young": 3} == step(of)
    assert {"old": 1, "young": 1} == step(of)
    turn = of.turn()

    assert ("young",) == turn.stepped_back
    assert ["old"] == [part.call.id for part in turn.parts]
    assert ([], 0) == (young.blocks, young.num_computed)
    of.done(turn.parts)
    of.remove(old)
    # Its block went to the older one, so all of it is computed again.
    assert {"young": 5} == step(of)


def test_what_one_call_computed_another_finds():
    of = batch(prefill_tokens=100)
    of.add(call("a", 11, first=0))
    step(of)
    of.add(call("b", 14, first=0))

    # Two blocks of eight tokens are found; the third of `a` was not full.
    assert {"a": 1, "b": 6} == step(of)


def test_the_last_token_is_computed_even_when_all_are_found():
    of = batch(prefill_tokens=100)
    of.add(call("a", 8, first=0))
    step(of)
    of.add(call("b", 8, first=0))

    assert {"a": 1, "b": 4} == step(of)


def test_prompts_with_one_beginning_wait_until_the_first_has_computed_it():
    of = batch(prefill_tokens=100)
    for name in "abc":
        of.add(call(name, 9, first=0))
    of.add(call("other", 5, first=50))

    assert {"a": 9, "other": 5} == step(of)
    assert {"a": 1, "other": 1, "b": 1, "c": 1} == step(of)


def test_output_is_found_by_the_next_turn_of_a_conversation():
    of = batch(prefill_tokens=100)
    first = call("a", 6, first=0)
    of.add(first)
    for _ in range(7):
        step(of)
    said = first.tokens[:]
    of.remove(first)
    of.add(SequenceState(id="b", tokens=said + array("i", [90, 91])))

    # 13 tokens said, of which the last is not computed: three full blocks are found.
    assert {"b": len(said) + 2 - 12} == step(of)


def test_after_a_restart_nothing_computed_before_is_used():
    of = batch(prefill_tokens=100)
    running, waiting = call("a", 9, first=0), call("b", 9, first=0)
    of.add(running)
    step(of)
    of.add(waiting)
    of.restart(b"new")

    assert 100 == of.cache.num_available
    assert [running, waiting] == list(of.waiting)
    assert {"a": 10} == step(of)


def test_removed_calls_leave_all_blocks_available():
    of = batch(num_blocks=10)
    calls = [call(name, 9) for name in "abc"]
    for one in calls:
        of.add(one)
    step(of)
    for one in calls:
        of.remove(one)

    assert 10 == of.cache.num_available
    assert [] == list(of)
