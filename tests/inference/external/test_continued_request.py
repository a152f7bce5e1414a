"""A call over several requests: what each asks for, and what the call says to its reader."""

from array import array

from gyre.inference.external.sglang import ContinuedRequest
from gyre.types.sampling import Chunk, GenerateRequest, SamplingParams

PROMPT = [1, 2, 3]


def call(**settings):
    prompt = array("i", PROMPT).tobytes()
    sampling = SamplingParams(max_tokens=9, **settings)
    return ContinuedRequest(
        GenerateRequest(id="c", input_ids=prompt, sampling=sampling, execution="e")
    )


def chunk(*ids, finish=None, prompt_ids=None):
    logprobs = [-1.0] * len(ids)
    return Chunk(ids=list(ids), logprobs=logprobs, finish=finish, prompt_ids=prompt_ids)


def test_the_next_request_asks_for_what_is_left():
    one = call()
    first = one.rest()
    one.take(chunk(4, 5))
    second = one.rest()

    assert (PROMPT, 9) == (array("i", first.input_ids).tolist(), first.sampling.max_tokens)
    assert [*PROMPT, 4, 5] == array("i", second.input_ids).tolist()
    assert 7 == second.sampling.max_tokens
    assert first.id != second.id == one.request


def test_a_request_that_was_cut_does_not_end_the_call():
    one = call()
    one.rest()
    one.is_cut = True

    assert None is one.take(chunk(4, finish="abort")).finish
    assert not one.is_over


def test_a_call_that_is_cut_behind_its_last_token_is_over():
    """An engine that is asked for no token at all may refuse, or sample one too many."""
    for ids, finish in (([1] * 9, "length"), ([4, 7], "stop")):
        one = call(stop_ids=(7,))
        one.rest()
        one.is_cut = True

        assert finish == one.take(chunk(*ids, finish="abort")).finish
        assert one.is_over


def test_a_seed_moves_on_with_the_tokens():
    one = call(seed=3)
    first = one.rest()
    one.take(chunk(4, 5))

    assert (3, 5) == (first.sampling.seed, one.rest().sampling.seed)


def test_an_engine_that_ends_a_request_by_itself_ends_the_call():
    one = call()
    one.rest()

    assert "abort" == one.take(chunk(4, finish="abort")).finish
    assert one.is_over


def test_a_cut_says_nothing_of_the_request_after_it():
    one = call()
    one.rest()
    one.is_cut = True
    one.take(chunk(4, finish="abort"))
    one.rest()

    assert "abort" == one.take(chunk(5, finish="abort")).finish


def test_a_call_that_nobody_waits_for_ends_with_its_request():
    one = call()
    one.rest()
    one.is_cut, one.is_wanted = True, False

    assert "abort" == one.take(chunk(finish="abort")).finish


def test_a_reply_that_was_complete_when_it_was_cut_is_complete():
    one = call()
    one.rest()
    one.is_cut = True

    assert "stop" == one.take(chunk(4, finish="stop")).finish
    assert one.is_over


def test_the_echo_is_of_the_prompt_alone_and_comes_once():
    one = call()
    one.rest()
    one.take(chunk(4))
    one.rest()
    late = one.take(chunk(5, prompt_ids=[*PROMPT, 4]))
    again = one.take(chunk(6, prompt_ids=[*PROMPT, 4]))

    assert (PROMPT, None) == (late.prompt_ids, again.prompt_ids)
