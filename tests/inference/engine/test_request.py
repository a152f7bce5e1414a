"""What can never be served is refused by name; what is served ends where it should."""

from array import array

import pytest
from tests.inference.support.slow_engine import ask

from gyre.inference.engine.request import admitted
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

CONTEXT = 20
VOCABULARY = 128


def letters(ids):
    return "".join(map(chr, ids))


def admit(asked, decode=letters):
    return admitted(
        asked, context_tokens=CONTEXT, vocabulary=VOCABULARY, engine_seed=0, decode=decode
    )


def take_all(request, text):
    """Finishes by letter, until one ends it."""
    finishes = []
    for letter in text:
        finishes.append(request.take(ord(letter), -1.0, 0).finish)
        if finishes[-1] is not None:
            break
    return finishes


@pytest.mark.parametrize(
    ("ids", "sampling", "said"),
    [
        ([], {}, "0 bytes"),
        ([1] * CONTEXT, {}, "20 tokens .* context of 20"),
        ([1] * 99, {}, "99 tokens .* context of 20"),
        ([VOCABULARY], {}, "id 128 .* 128"),
        ([-1], {}, "id -1"),
        ([1], {"temperature": -0.1}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"top_p": 1.5}, "top_p"),
        ([1], {"top_k": 0}, "top_k"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"stop": ("",)}, "stop"),
        ([1], {"seed": 2**70}, "seed"),
    ],
)
def test_an_ask_that_can_never_be_served_is_refused(ids, sampling, said):
    with pytest.raises(EngineError, match=f"ask a: .*{said}") as error:
        admit(ask(ids, **sampling))

    assert not error.value.retryable


def test_ids_that_are_not_whole_are_refused():
    with pytest.raises(EngineError, match="7 bytes"):
        admit(
            GenerateRequest(id="a", input_ids=b"1234567", sampling=SamplingParams(), execution="e")
        )


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(EngineError, match="tokenizer") as error:
        admit(ask([1], stop=("x",)), decode=None)

    assert not error.value.retryable


def test_output_ends_where_the_context_does():
    request = admit(ask([1] * 17, max_tokens=100))

    assert [None, None, "length"] == take_all(request, "abcdef")


def test_a_stop_id_ends_the_reply_and_is_kept():
    request = admit(ask([ord("z")], stop_ids=(ord("x"), ord("y"))))

    assert [None, None, "stop"] == take_all(request, "abyc")
    assert [ord(letter) for letter in "aby"] == request.output_ids


def test_a_stop_string_ends_the_reply_when_it_is_complete():
    request = admit(ask([ord("e")], stop=("end.", "xx")))

    assert [None] * 4 + ["stop"] == take_all(request, "bend.x")


def test_a_stop_string_in_the_prompt_or_across_its_end_does_not_count():
    request = admit(ask([ord("e"), ord("n")], stop=("end",)))

    assert [None, None] == take_all(request, "de")


def test_a_stop_string_that_takes_many_tokens_is_found():
    stop = "0123456789"
    request = admit(ask([1], max_tokens=19, stop=(stop,)))

    assert "stop" == take_all(request, "abcd" + stop)[-1]


def test_stop_strings_in_letters_of_several_bytes_are_found():
    def decode(ids):
        return bytes(ids).decode(errors="replace")

    request = admitted(
        ask([1], stop=("ü!",)), context_tokens=99, vocabulary=256, engine_seed=0, decode=decode
    )
    finishes = [request.take(one, -1.0, 0).finish for one in "aéü!".encode()]

    assert [None] * 5 + ["stop"] == finishes


def test_output_that_cannot_be_decoded_ends_that_ask_with_an_error():
    def decode(ids):
        raise OverflowError("no such id")

    request = admit(ask([1], stop=("x",)), decode=decode)
    with pytest.raises(EngineError, match="no such id") as error:
        request.take(5, -1.0, 0)

    assert not error.value.retryable


def test_the_prompt_is_echoed_with_the_first_token_only():
    request = admit(ask([4, 5, 6]))

    assert [4, 5, 6] == request.take(1, -1.0, 0).prompt_ids
    assert request.take(2, -1.0, 0).prompt_ids is None


def test_what_was_sampled_so_far_is_told_by_version():
    request = admit(ask([4]))
    for token, version in ((1, 0), (2, 0), (3, 1)):
        request.take(token, -token / 2, version)
    first, second, last = request.so_far()

    assert ([1, 2], [-0.5, -1.0], 0, None) == (
        first.ids,
        first.logprobs,
        first.version,
        first.finish,
    )
    assert ([3], [-1.5], 1, None) == (second.ids, second.logprobs, second.version, second.finish)
    assert ([], "abort") == (last.ids, last.finish)


def test_token_n_draws_the_number_of_its_seed_plus_n():
    """T07: a continued call has its seed moved on by the tokens it has."""
    whole = admit(ask([1], seed=40))
    whole.take(3, -1.0, 0)
    whole.take(4, -1.0, 0)
    rest = admit(ask(array("i", [1, 3, 4]).tolist(), seed=42))

    assert whole.seed_after(0) == rest.seed_after(0)
    assert whole.seed_after(1) == rest.seed_after(1) != rest.seed_after(0)
