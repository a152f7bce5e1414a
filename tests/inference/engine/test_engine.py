"""Whatever happens around a call, its tokens and log-probabilities are those of the slow engine."""

import random
from array import array
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.inference.engine.test_kv_cache import no_more_memory
from tests.inference.support.slow_engine import (
    CONTEXT,
    VOCABULARY,
    ask,
    assert_same,
    expected,
    expected_with_kept_kv,
    loop,
    network,
    run,
    told,
    weights,
)

from gyre.inference.engine.model_runner import PlainForward
from gyre.inference.engine.request import RequestFailed
from gyre.types.errors import ConfigError, EngineDraining, EngineError, ModelError, OutOfMemory

FAMILIES = ("llama", "qwen2", "qwen3")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(autouse=True, params=[False, True], ids=["in-turn", "ahead"])
def ahead(request, monkeypatch):
    """Whether passes are launched before the tokens of those before them are looked at."""
    monkeypatch.setattr(PlainForward, "returns_early", request.param)
    return request.param


def test_every_pass_is_made_on_the_loops_own_device(monkeypatch):
    """A thread's current device is another, and kernels and events are of the current one."""
    inside, seen = [], []

    @contextmanager
    def noted(device):
        inside.append(device)
        yield
        inside.pop()

    class Looking(PlainForward):
        def __call__(self, work, ids=None):
            seen.append([*inside])
            return super().__call__(work, ids)

        def sample(self, logits, draws):
            seen.append([*inside])
            return super().sample(logits, draws)

    monkeypatch.setattr("gyre.inference.engine.engine.current", noted)
    model = network()
    run(loop(model, make_forward=Looking), [ask([1, 2, 3])])

    assert {(model.device,)} == {tuple(one) for one in seen}
    assert [] == inside


class Recorded:
    """The plain forward, with the passes it was given; may be told to spoil some."""

    def __init__(self, network, store):
        self._forward = PlainForward(network, store)
        self.passes = []
        self.num_to_fail = 0
        self.failure: Exception = torch.OutOfMemoryError("no room for this pass")
        self.spoil = None
        """A first token whose call gets no numbers."""

    @property
    def returns_early(self):
        return self._forward.returns_early

    def __call__(self, work, ids=None):
        self.passes.append(work)
        if self.num_to_fail:
            self.num_to_fail -= 1
            raise self.failure
        logits = self._forward(work, ids)
        for row, call in enumerate(work.wanted):
            if self.spoil is not None and self.spoil == work.ids[work.starts[call]]:
                logits[row] = torch.nan
        return logits

    def sample(self, logits, draws):
        return self._forward.sample(logits, draws)

    def reload(self):
        self._forward.reload()

    def forget(self):
        self._forward.forget()

    @property
    def num_tokens(self):
        return sum(len(one.ids) for one in self.passes)


def recorded_loop(model, **changes):
    made = []

    def make_forward(network, store):
        made.append(Recorded(network, store))
        return made[-1]

    return loop(model, make_forward=make_forward, **changes), made[-1]


def prompt(length, seed=0):
    rng = random.Random(f"{seed}/{length}")
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def varied_asks():
    """Lengths on both sides of a block and of a chunk, all ways to sample."""
    ways = [
        {},
        {"temperature": 0.7},
        {"temperature": 0},
        {"top_p": 0.8},
        {"top_k": 5},
        {"top_k": 9, "top_p": 0.6, "temperature": 1.3},
        {"stop_ids": tuple(range(0, VOCABULARY, 5))},
        {"seed": None},
    ]
    lengths = [1, 3, 4, 5, 63, 64, 65, 100]
    return [
        ask(prompt(length), f"a{number}", **{"seed": number} | how)
        for number, (length, how) in enumerate(zip(lengths, ways, strict=True))
    ]


@cache
def varied_answers():
    """What the slow engine says to them, by their ids."""
    model = network()
    return {one.id: expected(model, one) for one in varied_asks()}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
def test_calls_that_run_together_are_answered_as_if_alone(kind, dtype):
    model = network(kind, dtype=dtype)
    asks = varied_asks()
    answers = run(loop(model), asks)

    for one in asks:
        assert_same(expected(model, one), answers[one.id], TOLERANCE[dtype])


@pytest.mark.parametrize(
    "changes",
    [
        {"prefill_tokens": 1},
        {"prefill_tokens": 7},
        {"block_tokens": 1},
        {"block_tokens": 64},
        {"capacity": 1},
        {"capacity": 3, "prefill_tokens": 30},
    ],
    ids=str,
)
def test_the_size_of_chunks_blocks_and_batches_changes_no_answer(changes):
    asks = varied_asks()
    answers = run(loop(network(), **changes), asks)

    for one in asks:
        assert_same(varied_answers()[one.id], answers[one.id])


def test_calls_that_step_back_for_memory_are_answered_exactly():
    model = network()
    asks = [ask(prompt(9, seed=n), f"a{n}", seed=n, max_tokens=30) for n in range(6)]
    engine, forward = recorded_loop(model, kv_tokens=80)
    answers = run(engine, asks)

    # More than each token once: some were computed again.
    assert 6 * (9 + 29) < forward.num_tokens
    for one in asks:
        assert_same(expected(model, one), answers[one.id])


def test_the_same_seed_gives_the_same_tokens_whatever_else_runs():
    model = network()
    asked = ask(prompt(20), seed=77, max_tokens=20)
    alone = run(loop(model), [asked])["a"]
    crowd = [ask(prompt(30, seed=n), f"b{n}", seed=n, top_k=3) for n in range(7)]
    engine = loop(model, prefill_tokens=5)
    answers = run(engine, crowd, steps=3)
    crowded = run(engine, [asked], answers)["a"]

    assert_same(alone, crowded)


def test_a_common_beginning_is_computed_once_for_a_group():
    model = network()
    asks = [ask(prompt(41), f"a{n}", seed=n, max_tokens=1) for n in range(5)]
    engine, forward = recorded_loop(model)
    answers = run(engine, asks)

    # Ten blocks of four are shared, and the last token is each call's own.
    assert 41 + 4 == forward.num_tokens
    for one in asks:
        assert_same(expected(model, one), answers[one.id])


def test_the_next_turn_of_an_execution_finds_prompt_and_output():
    model = network()
    first = ask(prompt(10), max_tokens=11)
    engine, forward = recorded_loop(model)
    said = run(engine, [first])["a"].ids
    computed = forward.num_tokens
    second = ask([*prompt(10), *said, *prompt(5)], "b")
    answer = run(engine, [second])["b"]

    # Of 21 tokens 20 were computed, in five full blocks; six are new.
    assert computed + 6 + 11 == forward.num_tokens
    assert_same(expected(model, second), answer)


@pytest.mark.parametrize("steps", range(9))
def test_a_cancelled_call_keeps_its_tokens_and_continues_elsewhere(steps):
    """T07, at every moment: waiting, in the middle of its prompt, and while sampling."""
    model = network()
    whole = ask(prompt(20), max_tokens=8, seed=9)
    engine = loop(model, prefill_tokens=8)
    said = run(engine, [whole], steps=steps)["a"]
    kept = told()
    for chunk in engine.cancel("a"):
        kept.take(chunk)
    rest = ask(
        prompt(20) + kept.ids,
        max_tokens=8 - len(kept.ids),
        seed=9 + len(kept.ids),
    )
    if len(kept.ids) < 8 and said.finish is None:
        rested = run(loop(network()), [rest])["a"]
        kept = replace(
            rested,
            ids=kept.ids + rested.ids,
            logprobs=kept.logprobs + rested.logprobs,
            versions=kept.versions + rested.versions,
            echoes=[prompt(20)],
        )
        assert_same(expected(model, whole), kept)
    assert not engine.has_calls
    assert engine.capacity().blocks == engine.capacity().available_blocks
    assert () == engine.cancel("a")


@pytest.mark.parametrize("steps", [2, 5, 9])
def test_new_weights_in_the_middle_of_a_call_sample_what_follows(steps):
    """SPEC 2.4: each token has the version that sampled it, under keys and values of its own."""
    old, new = network(seed=1), network(seed=2)
    asked = ask(prompt(20), max_tokens=12)
    engine = loop(network(seed=1), version=3, prefill_tokens=12)
    answers = run(engine, [asked], steps=steps)
    before = len(answers["a"].ids)
    engine.load(weights(new), version=4)
    answer = run(engine, answers=answers)["a"]
    wanted = expected(old, asked, version=3)
    rest = expected(
        new,
        ask(prompt(20) + wanted.ids[:before], max_tokens=12 - before, seed=5 + before),
        version=4,
    )

    assert wanted.ids[:before] + rest.ids == answer.ids
    assert [3] * before + [4] * (12 - before) == answer.versions
    assert wanted.logprobs[:before] + rest.logprobs == pytest.approx(answer.logprobs, abs=1e-5)


@pytest.mark.parametrize("steps", [1, 4])
def test_keys_and_values_are_kept_over_a_load_if_asked(steps, ahead):
    old, new = network(seed=1), network(seed=2)
    asked = ask(prompt(13), max_tokens=9)
    engine, forward = recorded_loop(network(seed=1), version=3)
    answers = run(engine, [asked], steps=steps)
    engine.load(weights(new), version=4, keep_kv=True)
    answer = run(engine, answers=answers)["a"]
    # A pass on its way at the load is one of the old weights.
    num_old = steps + ahead
    ids, logprobs = expected_with_kept_kv(old, new, asked, num_old)

    assert 13 + 8 == forward.num_tokens, "nothing is computed again"
    assert ids == answer.ids
    assert [3] * num_old + [4] * (9 - num_old) == answer.versions
    assert logprobs == pytest.approx(answer.logprobs, abs=1e-5)


def test_what_old_weights_computed_is_not_found_after_a_load():
    new = network(seed=2)
    engine = loop(network(seed=1))
    run(engine, [ask(prompt(30))])
    engine.load(weights(new), version=1)

    assert_same(expected(new, ask(prompt(30)), version=1), run(engine, [ask(prompt(30))])["a"])


def bad_weights():
    good = weights(network(seed=2))
    name = next(name for name in good if name.endswith("q_proj.weight"))
    nan = good[name].clone()
    nan[3, 3] = torch.nan
    return {
        "another shape": good | {name: good[name][:-1]},
        "a missing name": {one: good[one] for one in good if one != name},
        "no number": good | {name: nan},
        "an unknown name": good | {"extra": nan},
    }


@pytest.mark.parametrize("wrong", bad_weights())
def test_weights_that_cannot_be_used_leave_the_old_ones_serving(wrong):
    model = network(seed=1)
    asked = ask(prompt(10))
    engine, forward = recorded_loop(network(seed=1), version=3)
    answers = run(engine, [asked], steps=4)
    with pytest.raises(ModelError):
        engine.load(bad_weights()[wrong], version=4)

    assert_same(expected(model, asked, version=3), run(engine, answers=answers)["a"])
    assert 10 + 11 == forward.num_tokens
    assert 3 == engine.health().version


def test_a_folder_of_weights_that_is_not_there_is_refused(tmp_path):
    engine = loop(network())
    with pytest.raises(ModelError, match="no such file"):
        engine.load(tmp_path, version=1)

    assert 0 == engine.version


def test_a_paused_engine_takes_asks_and_computes_nothing():
    model = network()
    engine = loop(model)
    answers = run(engine, [ask(prompt(5))], steps=3)
    engine.pause()
    engine.submit(ask(prompt(6), "b"))
    answers["b"] = told()

    assert [] == engine.step()
    assert (True, "paused") == (engine.health().ready, engine.health().detail)
    engine.resume()
    run(engine, answers=answers)
    assert_same(expected(model, ask(prompt(5))), answers["a"])
    assert_same(expected(model, ask(prompt(6))), answers["b"])


@pytest.mark.parametrize("offload_weights", [False, True])
def test_a_resting_engine_holds_no_memory_and_serves_again_when_woken(offload_weights):
    model = network()
    engine = loop(model)
    run(engine, [ask(prompt(9))], steps=4)
    ended = engine.offload(offload_weights=offload_weights)

    assert [("a", "abort")] == [(one.id, one.chunk.finish) for one in ended]
    assert (False, "resting") == (engine.health().ready, engine.health().detail)
    assert 0 == engine.capacity().available_blocks
    with pytest.raises(EngineDraining):
        engine.submit(ask(prompt(9)))
    assert [] == engine.step()
    engine.wake()
    engine.wake()
    assert engine.health().ready
    assert_same(expected(model, ask(prompt(9))), run(engine, [ask(prompt(9))])["a"])


def test_weights_may_be_loaded_while_resting():
    new = network(seed=2)
    engine = loop(network(seed=1))
    engine.offload()
    engine.load(weights(new), version=1)
    engine.wake()

    assert_same(expected(new, ask([1, 2]), version=1), run(engine, [ask([1, 2])])["a"])


def test_an_engine_that_finds_no_memory_rests_on_and_can_be_woken_later():
    model = network()
    engine = loop(model, kv_tokens=2**20)
    engine.offload()
    with no_more_memory(), pytest.raises(OutOfMemory):
        engine.wake()

    assert not engine.health().ready
    engine.wake()
    assert_same(expected(model, ask([1, 2])), run(engine, [ask([1, 2])])["a"])


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError("no room"), MemoryError()])
def test_a_pass_that_fails_ends_its_calls_and_no_others(ahead, failure):
    model = network()
    engine, forward = recorded_loop(model, capacity=2)
    forward.failure = failure
    asks = [ask(prompt(5, seed=n), f"a{n}") for n in range(3)]
    for one in asks:
        engine.submit(one)
    engine.step()
    forward.num_to_fail = 1
    failed = engine.step()
    if ahead:
        # One was on its way and stands, the one after it is tried again.
        assert not any(isinstance(one, RequestFailed) for one in failed)
        forward.num_to_fail = 1
        failed = engine.step()

    assert ["a0", "a1"] == [one.id for one in failed]
    assert all(isinstance(one, RequestFailed) and one.error.retryable for one in failed)
    assert_same(expected(model, asks[2]), run(engine, answers={"a2": told()})["a2"])
    assert engine.capacity().blocks == engine.capacity().available_blocks


def test_a_call_whose_logits_are_no_numbers_ends_alone():
    model = network()
    engine, forward = recorded_loop(model)
    forward.spoil = 7
    engine.submit(ask([7, 1, 2], "bad"))
    engine.submit(ask([1, 2], "good"))
    first, second = engine.step()

    assert ("bad", False) == (first.id, first.error.retryable)
    assert "not numbers" in str(first.error)
    assert "good" == second.id
    good = told()
    good.take(second.chunk)
    forward.spoil = None
    run(engine, answers={"good": good})
    assert_same(expected(model, ask([1, 2])), good)


def test_refusals_leave_everything_as_it_was():
    model = network()
    engine = loop(model)
    answers = run(engine, [ask(prompt(4))], steps=2)
    with pytest.raises(EngineError, match="another ask"):
        engine.submit(ask([1]))
    with pytest.raises(EngineError, match=rf"{CONTEXT} tokens .* {CONTEXT}"):
        engine.submit(ask([1] * CONTEXT, "b"))

    assert (1, 0) == (engine.capacity().running, engine.capacity().waiting)
    assert_same(expected(model, ask(prompt(4))), run(engine, answers=answers)["a"])


def test_a_call_may_fill_the_context_and_ends_there():
    model = network()
    asked = ask(prompt(CONTEXT - 5), max_tokens=100)
    answer = run(loop(model, kv_tokens=CONTEXT), [asked])["a"]

    assert (5, "length") == (len(answer.ids), answer.finish)
    assert_same(expected(model, asked), answer)


def test_a_cache_smaller_than_the_context_is_the_context():
    model = network()
    engine = loop(model, kv_tokens=40)
    asked = ask(prompt(30), max_tokens=100)

    assert 40 == engine.capacity().context_tokens
    assert_same(expected(model, asked, context=40), run(engine, [asked])["a"])
    with pytest.raises(EngineError, match=r"40 tokens .* 40"):
        engine.submit(ask(prompt(40), "b"))


def test_capacity_is_what_there_is():
    engine = loop(network(), capacity=2, kv_tokens=40)
    for number in range(3):
        engine.submit(ask(prompt(5, seed=number), f"a{number}"))
    engine.step()
    found = engine.capacity()

    assert (2, 2, 1) == (found.running, found.most_running, found.waiting)
    assert (10, 6, 4) == (found.blocks, found.available_blocks, found.block_tokens)


@pytest.mark.parametrize(
    "changes",
    [{"capacity": 0}, {"prefill_tokens": 0}, {"block_tokens": 0}, {"kv_tokens": 3}],
    ids=str,
)
def test_settings_that_leave_no_room_are_refused(changes):
    with pytest.raises(ConfigError, match=f"engine.{next(iter(changes))}"):
        loop(network(), **changes)


def test_prompt_ids_are_taken_as_bytes_of_int32():
    asked = ask([1, 2, 3])

    assert array("i", [1, 2, 3]).tobytes() == asked.input_ids
    assert [[1, 2, 3]] == run(loop(network()), [asked])["a"].echoes
