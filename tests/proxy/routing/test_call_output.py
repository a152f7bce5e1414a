"""One output out of what several engines sampled."""

import pytest

from gyre.proxy.routing.call_output import CallOutput
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, SamplingParams, Span

A, B = EngineName("a"), EngineName("b")


def sampled(**settings):
    return CallOutput(SamplingParams(**settings))


def test_parts_of_several_engines_are_one_output():
    """T07: with the engine and version of each part."""
    one = sampled()
    one.take(A, Chunk(ids=[1, 2], logprobs=[-1.0, -2.0], version=3, prompt_ids=[7]))
    one.take(A, Chunk(ids=[3], logprobs=[-3.0], version=3))
    one.take(A, Chunk(ids=[4], logprobs=[-4.0], version=4))
    one.take(B, Chunk(ids=[5], logprobs=[-5.0], version=4, finish="stop", prompt_ids=[7, 1, 2]))
    output = one.output(engine_s=1.5, attempts=2)

    assert [1, 2, 3, 4, 5] == output.ids
    assert [-1.0, -2.0, -3.0, -4.0, -5.0] == output.logprobs
    assert (
        Span(engine=A, version=3, tokens=3),
        Span(engine=A, version=4, tokens=1),
        Span(engine=B, version=4, tokens=1),
    ) == output.spans
    assert ("stop", [7], 1.5, 2) == (output.finish, output.echo, output.engine_s, output.attempts)


def test_what_is_left_is_asked_for_with_a_seed_that_moves_on():
    one = sampled(max_tokens=10, seed=5)
    one.take(A, Chunk(ids=[1, 2, 3], logprobs=[-1.0] * 3))

    assert (7, 8) == (one.rest.max_tokens, one.rest.seed)


def test_one_part_without_log_probabilities_leaves_none():
    """T27: never filled with zeros."""
    one = sampled()
    one.take(A, Chunk(ids=[1], logprobs=[-1.0]))
    one.take(B, Chunk(ids=[2], logprobs=None, finish="stop"))

    assert one.output(engine_s=0.0, attempts=2).logprobs is None


def test_an_empty_chunk_without_log_probabilities_lacks_nothing():
    one = sampled()
    one.take(A, Chunk(ids=[], logprobs=None))
    one.take(A, Chunk(ids=[1], logprobs=[-1.0], finish="stop"))

    assert [-1.0] == one.output(engine_s=0.0, attempts=1).logprobs


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(ids=[1, 2], logprobs=[-1.0], finish="stop", prompt_ids=[7]),
        Chunk(ids=[1, 2, 3], logprobs=[-1.0] * 3, finish="stop", prompt_ids=[7]),
    ],
)
def test_a_chunk_that_cannot_be_right_is_refused_whole(chunk):
    one = sampled(max_tokens=2)
    with pytest.raises(EngineError):
        one.take(A, chunk)
    output = one.output(engine_s=0.0, attempts=1)

    assert ([], [], (), None) == (output.ids, output.logprobs, output.spans, output.echo)
    assert one.finish is None


def test_a_stop_id_ends_the_call_even_if_the_engine_did_not_live_to_say_so():
    one = sampled(stop_ids=(9,))
    one.take(A, Chunk(ids=[1, 9], logprobs=[-1.0, -1.0]))

    assert "stop" == one.finish


def test_the_last_token_allowed_ends_the_call_likewise():
    one = sampled(max_tokens=2)
    one.take(A, Chunk(ids=[1, 2], logprobs=[-1.0, -1.0]))

    assert "length" == one.finish


def test_an_engines_abort_is_no_end():
    """T08: as long as there is more to come, the output so far is an aborted one."""
    one = sampled()
    one.take(A, Chunk(ids=[1], logprobs=[-1.0], finish="abort"))

    assert one.finish is None
    assert "abort" == one.output(engine_s=0.0, attempts=1).finish
