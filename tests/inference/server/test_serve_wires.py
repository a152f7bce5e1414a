"""Both wires tell the tokens of a slow engine, whole and in pieces, with the text they spell."""

import asyncio
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.support import serving, slow_engine

from gyre.inference.server.protocol import HALF, Detokenizer
from gyre.testing.tokenizer import tokenizer as bytes_tokenizer

PROMPT = [3, 1, 4, 1, 5]
LETTERS = serving.Letters()
NETWORK = slow_engine.network()


def said(*requests, **how):
    """Answers to (path, body) pairs of one served engine."""

    async def scenario():
        async with serving.served(NETWORK, **how) as client:
            return [await client.post(path, body) for path, body in requests]

    answers = asyncio.run(scenario())
    assert {200} == {one.status for one in answers}
    return answers


def expected(prompt=PROMPT, **sampling):
    return slow_engine.expected(NETWORK, slow_engine.ask(prompt, "r", **sampling))


def native(prompt=PROMPT, **fields):
    params = {"max_new_tokens": 20, "sampling_seed": 5} | fields.pop("sampling_params", {})
    return "/generate", {"input_ids": prompt, "rid": "r", "sampling_params": params} | fields


def completion(prompt=PROMPT, **fields):
    return "/v1/completions", {"prompt": prompt, "max_tokens": 20, "seed": 5} | fields


def assert_near(wanted, found):
    assert found == pytest.approx(wanted, abs=1e-5, rel=0)


@pytest.mark.parametrize(
    "drawn",
    [{}, {"temperature": 0.7}, {"temperature": 0}, {"top_p": 0.6}, {"top_k": 4}, {"seed": 2**63}],
    ids=str,
)
def test_both_wires_tell_what_the_slow_engine_draws(drawn):
    wanted = expected(max_tokens=20, **drawn)
    seed = {"sampling_seed": drawn["seed"]} if "seed" in drawn else {}
    params = {name: value for name, value in drawn.items() if name != "seed"} | seed
    one, two = said(
        native(sampling_params=params, return_logprob=True, return_prompt_token_ids=True),
        completion(logprobs=0, return_token_ids=True, **drawn),
    )
    meta, choice = one.json["meta_info"], two.json["choices"][0]

    assert wanted.ids == one.json["output_ids"] == choice["token_ids"]
    assert wanted.ids == [token for _, token, _ in meta["output_token_logprobs"]]
    assert_near(wanted.logprobs, [value for value, _, _ in meta["output_token_logprobs"]])
    assert_near(wanted.logprobs, choice["logprobs"]["token_logprobs"])
    assert PROMPT == one.json["prompt_token_ids"] == choice["prompt_token_ids"]
    assert {"type": "length", "length": 20} == meta["finish_reason"]
    assert "length" == choice["finish_reason"]
    assert (5, 20) == (meta["prompt_tokens"], meta["completion_tokens"])
    assert {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25} == two.json["usage"]


def test_a_stream_says_in_pieces_what_an_answer_says_at_once():
    shown = {"return_logprob": True, "return_prompt_token_ids": True}
    whole, stream = said(native(**shown), native(**shown, stream=True), tokenizer=LETTERS)
    events = stream.events
    metas = [event["meta_info"] for event in events]
    pairs = [pair for meta in metas for pair in meta["output_token_logprobs"]]

    assert whole.json["text"] == "".join(event["text"] for event in events)
    assert whole.json["output_ids"] == [one for event in events for one in event["output_ids"]]
    assert_near([one[0] for one in whole.json["meta_info"]["output_token_logprobs"]], [
        one[0] for one in pairs
    ])  # fmt: skip
    assert whole.json["meta_info"]["finish_reason"] == metas[-1]["finish_reason"]
    assert {None} == {meta["finish_reason"] for meta in metas[:-1]} | {None}
    assert [PROMPT] == [one["prompt_token_ids"] for one in events if "prompt_token_ids" in one]


def test_a_completion_streams_its_text_and_then_its_usage():
    shown = {"logprobs": 1, "return_token_ids": True}
    whole, stream, plain = said(
        completion(**shown),
        completion(**shown, stream=True, stream_options={"include_usage": True}),
        completion(stream=True),
        tokenizer=LETTERS,
    )
    *events, last = stream.events
    choices = [event["choices"][0] for event in events]
    all_of_it = whole.json["choices"][0]

    assert all_of_it["text"] == "".join(one["text"] for one in choices)
    assert all_of_it["token_ids"] == [token for one in choices for token in one["token_ids"]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for one in choices for value in one["logprobs"][name]]
        assert all_of_it["logprobs"][name] == pytest.approx(joined)
    assert ([], whole.json["usage"]) == (last["choices"], last["usage"])
    assert "length" == choices[-1]["finish_reason"]
    assert all("token_ids" not in event["choices"][0] for event in plain.events)
    assert all(event["choices"][0]["logprobs"] is None for event in plain.events)
    assert {"text_completion"} == {event["object"] for event in plain.events}


def test_without_being_asked_it_gives_no_log_probabilities_and_no_echo():
    one, two = said(native(), completion())

    assert "output_token_logprobs" not in one.json["meta_info"]
    assert "prompt_token_ids" not in one.json
    assert "token_ids" not in two.json["choices"][0]


def test_a_reply_ends_at_the_models_own_end_unless_that_is_ignored():
    ids = expected(max_tokens=20).ids
    end = ids[6]
    first = ids.index(end)
    ended, ignored, two, two_ignored = said(
        native(),
        native(sampling_params={"ignore_eos": True}),
        completion(return_token_ids=True),
        completion(return_token_ids=True, ignore_eos=True),
        end_ids=(end,),
    )

    assert ids[: first + 1] == ended.json["output_ids"] == two.json["choices"][0]["token_ids"]
    assert {"type": "stop", "matched": end} == ended.json["meta_info"]["finish_reason"]
    assert "stop" == two.json["choices"][0]["finish_reason"]
    assert ids == ignored.json["output_ids"] == two_ignored.json["choices"][0]["token_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_reply_and_is_cut_from_the_text(stream):
    ids = expected(max_tokens=20).ids
    text = LETTERS.whole(ids)
    stop = text[5:8]
    special = {"skip_special_tokens": False}
    cut_off = {"stop": stop} | special
    shown, cut, kept = said(
        completion(stop=["never", stop], stream=stream, **special),
        native(sampling_params=cut_off, stream=stream),
        native(sampling_params=cut_off | {"no_stop_trim": True}, stream=stream),
        tokenizer=LETTERS,
    )
    end = text.index(stop) + len(stop)

    def joined(answer, read):
        return [read(one) for one in (answer.events if stream else [answer.json])]

    spelled = joined(shown, lambda one: one["choices"][0]["text"])
    assert text[: end - 3] == "".join(spelled)
    assert text[: end - 3] == "".join(joined(cut, lambda one: one["text"]))
    assert text[:end] == "".join(joined(kept, lambda one: one["text"]))
    assert ids[:end] == list(chain(*joined(cut, lambda one: one["output_ids"])))
    last = joined(cut, lambda one: one["meta_info"]["finish_reason"])[-1]
    assert {"type": "stop", "matched": stop} == last


def test_special_tokens_are_shown_only_to_those_who_ask():
    ids = expected(max_tokens=20, top_k=1).ids
    letters = serving.Letters()
    letters.special = ids[2]
    hidden, shown = said(
        native(sampling_params={"top_k": 1}),
        native(sampling_params={"top_k": 1, "skip_special_tokens": False}),
        tokenizer=letters,
    )

    assert shown.json["text"].replace("#", "") == hidden.json["text"]
    assert "#" == shown.json["text"][2]


def test_a_prompt_is_text_or_ids_however_it_is_wrapped():
    ids = LETTERS.encode("hello")
    answers = said(
        *(completion(prompt, return_token_ids=True) for prompt in ("hello", ["hello"], ids, [ids])),
        tokenizer=LETTERS,
    )
    (text,) = said(("/generate", {"text": "hello", "return_prompt_token_ids": True}),
                   tokenizer=LETTERS)  # fmt: skip

    assert {tuple(ids)} == {tuple(one.json["choices"][0]["prompt_token_ids"]) for one in answers}
    assert ids == text.json["prompt_token_ids"]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"prompt": ["a", "b"]}, "prompt: expected one text or one list of ids"),
        ({"prompt": {"a": 1}}, "prompt: expected one text or one list of ids"),
        ({"prompt": [1.5]}, "prompt: expected one text or one list of ids"),
        ({"prompt": None}, "prompt: expected one text or one list of ids"),
        ({"prompt": ""}, "prompt: expected at least one id"),
        ({"prompt": []}, "prompt: expected at least one id"),
        ({"logprobs": 5}, "logprobs: expected 0 or 1"),
        ({"n": 2}, "n: expected 1"),
        ({"best_of": 3}, "best_of: expected 1, found 3"),
        ({"echo": True}, "echo: expected none"),
        ({"suffix": "x"}, "suffix: expected none"),
        ({"presence_penalty": 0.5}, "presence_penalty: expected 0.0"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more, found 0"),
        ({"stop": [""]}, "stop: expected strings that are not empty"),
        ({"stream": "yes"}, "$.stream"),
    ],
    ids=str,
)
def test_a_completion_that_cannot_be_given_is_refused(fields, where):
    async def scenario():
        async with serving.served(NETWORK, tokenizer=LETTERS) as client:
            return await client.post("/v1/completions", completion()[1] | fields)

    refused = asyncio.run(scenario())

    assert 400 == refused.status
    assert where in refused.json["error"]["message"]


def test_without_a_tokenizer_prompts_are_ids_and_texts_are_empty():
    one, two = said(native(), completion(logprobs=0))

    assert "" == one.json["text"] == two.json["choices"][0]["text"]
    assert 20 == len(one.json["output_ids"])


class Bytes:
    """The tokenizer for tests, whose tokens may hold half a character."""

    def decode(self, ids, *, skip_special):
        return bytes_tokenizer().decode(list(ids), skip_special_tokens=skip_special)


@given(
    text=st.text(st.sampled_from("ab é€😀\n"), max_size=30),
    cuts=st.lists(st.integers(0, 60)),
    stop=st.text(st.sampled_from("ab "), min_size=1, max_size=3),
)
def test_text_in_pieces_is_the_text_in_whole_up_to_the_stop_string(text, cuts, stop):
    """However the pieces are cut: characters stay whole, and nothing of the stop is shown."""
    decode = bytes_tokenizer().decode
    ids = bytes_tokenizer().encode(text, add_special_tokens=False).ids
    # As the engine does it: it ends with the token that completes the string.
    ends = [end for end in range(len(ids) + 1) if stop in decode(ids[:end])]
    ids = ids[: ends[0]] if ends else ids
    spelling = Detokenizer(Bytes(), True, (stop,))
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts)]
    pieces = [spelling.add(ids[start:end], is_last=False) for start, end in pairwise(bounds)]
    pieces.append(spelling.add(ids[bounds[-1] :], is_last=True))

    assert all(HALF not in piece for piece in pieces)
    assert decode(ids).partition(stop)[0] == "".join(pieces)
