"""Pinned blocks outlive their call, and let another engine go on without computing them."""

from array import array
from dataclasses import replace

import pytest
import torch
from tests.inference.engine.test_engine import prompt, recorded_loop
from tests.inference.support.slow_engine import (
    ask,
    assert_same,
    expected,
    loop,
    network,
    run,
    weights,
)

from gyre.inference.engine.kv_cache import KvCache
from gyre.types.errors import EngineDraining, EngineError, OutOfMemory


def moved(source, destination, name="a"):
    """Pin, cancel, export, import, release: as when a call leaves an engine (SPEC 2.3)."""
    pin = source.pin(name)
    kept = [token for chunk in source.cancel(name) for token in chunk.ids]
    given = source.export(pin)
    taken = destination.import_(given)
    source.release(pin)
    return kept, taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block_tokens", [1, 3, 4, 16])
def test_a_call_goes_on_elsewhere_from_its_blocks(block_tokens, dtype):
    model = network(dtype=dtype)
    whole = ask(prompt(21), max_tokens=12)
    source = loop(model)
    before = run(source, [whole], steps=6)["a"]
    destination, forward = recorded_loop(network(dtype=dtype), block_tokens=block_tokens)
    kept, pin = moved(source, destination)
    rest = ask(prompt(21) + kept, max_tokens=12 - len(kept), seed=5 + len(kept))
    answer = run(destination, [rest])["a"]
    wanted = expected(model, whole)

    # Of 27 tokens 26 are computed, in six blocks of four; what does not fill a block is lost.
    assert 24 // block_tokens * block_tokens == pin.num_tokens
    assert 27 - pin.num_tokens + len(answer.ids) - 1 == forward.num_tokens
    assert wanted.ids == kept + answer.ids
    assert wanted.logprobs == pytest.approx(
        before.logprobs + answer.logprobs, abs=1e-10 if dtype == torch.float64 else 1e-5
    )


def test_blocks_that_cannot_be_filled_are_left_to_others(monkeypatch):
    model = network()
    source, destination = loop(model), loop(model)
    run(source, [ask(prompt(21), max_tokens=2)])
    given = source.export(source.pin(prompt(21)))
    before = destination.capacity().available_blocks

    def fill(store, blocks, values):
        raise OutOfMemory("no room for a copy")

    with monkeypatch.context() as patched:
        patched.setattr(KvCache, "fill", fill)
        with pytest.raises(OutOfMemory):
            destination.import_(given)

    assert before == destination.capacity().available_blocks
    assert 20 == destination.import_(given).num_tokens


def test_pinned_blocks_are_not_given_to_others():
    model = network()
    engine, forward = recorded_loop(model, kv_tokens=40)
    run(engine, [ask(prompt(17), max_tokens=2)])
    pin = engine.pin(prompt(17))
    others = [ask(prompt(12, seed=n), f"b{n}", max_tokens=12) for n in range(4)]
    answers = run(engine, others)
    computed = forward.num_tokens
    again = ask(prompt(17), "c", max_tokens=1)

    assert 16 == pin.num_tokens
    assert 6 == engine.capacity().available_blocks
    assert_same(expected(model, again), run(engine, [again])["c"])
    assert computed + 1 == forward.num_tokens
    for one in others:
        assert_same(expected(model, one), answers[one.id])
    engine.release(pin)
    engine.release(pin)
    assert 10 == engine.capacity().available_blocks


def test_a_call_that_pins_leave_no_room_for_waits():
    model = network()
    engine = loop(model, kv_tokens=40)
    run(engine, [ask(prompt(33), max_tokens=1)])
    pin = engine.pin(prompt(33))
    asked = ask(prompt(20, seed=1), "b")
    engine.submit(asked)

    assert [] == engine.step()
    assert not engine.is_busy
    engine.release(pin)
    engine.cancel("b")
    assert_same(expected(model, asked), run(engine, [asked])["b"])


def test_an_unknown_beginning_pins_nothing():
    engine = loop(network())
    pin = engine.pin(prompt(20))

    assert 0 == pin.num_tokens
    assert b"" == engine.export(pin).token_ids


def test_a_pin_has_the_version_it_was_computed_under():
    engine = loop(network(seed=1), version=3)
    run(engine, [ask(prompt(9))], steps=2)
    pin = engine.pin("a")
    engine.load(weights(network(seed=2)), version=4)
    given = engine.export(pin)

    assert 3 == given.version
    with pytest.raises(EngineError, match="weights 3: these are weights 4") as error:
        engine.import_(given)
    assert error.value.retryable


def exported(model, length=17):
    source = loop(model)
    run(source, [ask(prompt(length))], steps=2)
    return source.export(source.pin("a"))


def test_blocks_of_another_model_are_refused_and_nothing_is_taken():
    given = exported(network())
    engine = loop(network())
    before = engine.capacity()
    for wrong in (
        replace(given, values=given.values[:1]),
        replace(given, token_ids=given.token_ids[4:]),
        replace(given, values=given.values[..., :4]),
    ):
        with pytest.raises(EngineError, match="expected shape") as error:
            engine.import_(wrong)
        assert not error.value.retryable

    assert before == engine.capacity()


def test_blocks_that_do_not_fit_are_refused_by_name():
    engine = loop(network(), kv_tokens=12)

    with pytest.raises(OutOfMemory, match=r"4 blocks .* 3 of 3"):
        engine.import_(exported(network()))
    assert 3 == engine.capacity().available_blocks


def test_what_is_imported_twice_is_held_once_it_is_released():
    given = exported(network())
    engine = loop(network(), kv_tokens=40)
    pins = [engine.import_(given), engine.import_(given)]

    assert 2 == engine.capacity().available_blocks
    for pin in pins:
        engine.release(pin)
    assert 10 == engine.capacity().available_blocks


def test_pins_are_lost_when_the_engine_rests():
    engine = loop(network())
    run(engine, [ask(prompt(9))], steps=2)
    pin = engine.pin("a")
    given = engine.export(pin)
    engine.offload()
    with pytest.raises(EngineDraining):
        engine.pin("a")
    with pytest.raises(EngineDraining):
        engine.import_(given)
    with pytest.raises(EngineError, match="lost"):
        engine.export(pin)
    engine.release(pin)
    engine.wake()

    assert engine.capacity().blocks == engine.capacity().available_blocks
    with pytest.raises(EngineError, match="unknown"):
        engine.pin("a")


def test_exported_tokens_are_those_whose_blocks_are_full():
    given = exported(network(), length=18)

    assert prompt(18)[:16] == array("i", given.token_ids).tolist()
    assert (2, 2, 2, 16, 8) == tuple(given.values.shape)
    assert given.values.is_contiguous()
