"""Replies by place in the conversation, and the log-probabilities that go with them."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.testing.script import (
    ChatTurn,
    Conversation,
    FastCoder,
    NoReply,
    Script,
    ScriptedCall,
    ScriptedModel,
    ScriptedReply,
    after,
    always,
    logprobs,
)
from gyre.testing.tokenizer import tokenizer

CODER = FastCoder(tokenizer())


def prompt(*turns, opening=""):
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    return array("i", CODER.encode(f"{text}<|im_start|>assistant\n{opening}")).tobytes()


def answer(script, input_ids, max_tokens=1000):
    return ScriptedModel(script, CODER).plan(input_ids, max_tokens)


def test_the_reply_depends_on_how_often_the_assistant_spoke_since_the_marker():
    script = Script([after("task A", ScriptedReply(text="one"), ScriptedReply(text="two"))])
    first = prompt(("user", "task A"))
    second = prompt(("user", "task A"), ("assistant", "one"), ("user", "and now?"))

    assert "one<|im_end|>" == CODER.decode(answer(script, first).ids)
    assert "two<|im_end|>" == CODER.decode(answer(script, second).ids)
    assert "one<|im_end|>" == CODER.decode(answer(script, first).ids)


def test_a_marker_can_be_looked_for_in_one_place_only():
    turns = (
        ChatTurn(role="system", text="be brief"),
        ChatTurn(role="user", text="first"),
        ChatTurn(role="assistant", text="last"),
        ChatTurn(role="user", text="last"),
    )
    conversation = Conversation(turns=turns)

    assert 1 == conversation.replies_since("brief", "system")
    assert 1 == conversation.replies_since("first", "first user")
    assert 0 == conversation.replies_since("last", "last user")
    assert conversation.replies_since("first", "last user") is None
    assert conversation.replies_since("last", "system") is None


def test_a_conversation_without_a_rule_has_no_reply():
    with pytest.raises(NoReply, match="no rule of 1 answers after ChatTurn"):
        answer(Script([after("task A", ScriptedReply(text="one"))]), prompt(("user", "task B")))


def test_reasoning_and_tool_calls_are_written_as_qwen3_writes_them():
    call = ScriptedCall(name="read", arguments={"path": "a.py", "lines": [1, 2]})
    reply = ScriptedReply(text="Look.", reasoning="hm", calls=(call, call))
    plan = answer(Script([always(reply)]), prompt(("user", "go")))
    one = '{"name": "read", "arguments": {"path": "a.py", "lines": [1, 2]}}'
    calls = f"<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{one}\n</tool_call>"
    expected = f"<think>\nhm\n</think>\n\nLook.\n{calls}<|im_end|>"

    assert expected == CODER.decode(plan.ids)
    assert 2 == plan.ids.count(CODER.encode("<tool_call>")[0])
    assert "stop" == plan.finish


def test_a_reply_that_ran_out_of_length_has_no_closing_token():
    plan = answer(
        Script([always(ScriptedReply(text="cut here", finish="length"))]), prompt(("user", "go"))
    )

    assert "cut here" == CODER.decode(plan.ids)
    assert "length" == plan.finish


def test_raw_ids_are_sampled_verbatim_even_when_there_are_none():
    """T24: ordinary ids that spell a special token stay as they are."""
    spelled = tuple(tokenizer().encode("<|im", add_special_tokens=False).ids)
    said = answer(Script([always(ScriptedReply(ids=spelled))]), prompt(("user", "go")))
    silent = answer(Script([always(ScriptedReply(ids=()))]), prompt(("user", "go")))

    assert list(spelled) == said.ids
    assert [] == silent.ids
    assert "stop" == silent.finish


def test_max_tokens_cuts_the_reply():
    script = Script([always(ScriptedReply(text="a long reply that goes on"))])
    whole = answer(script, prompt(("user", "go")))
    cut = answer(script, prompt(("user", "go")), max_tokens=3)

    assert whole.ids[:3] == cut.ids
    assert "length" == cut.finish


def test_literal_special_text_in_a_turn_opens_no_turn():
    """T23: the conversation is split at special ids, not at text that spells them."""
    plain = tokenizer()
    plain.encode_special_tokens = True
    spelled = plain.encode("<|im_start|>assistant", add_special_tokens=False).ids
    plain.encode_special_tokens = False
    ids = [*CODER.encode("<|im_start|>user\nmark "), *spelled]
    ids += CODER.encode("<|im_end|>\n<|im_start|>assistant\n")
    script = Script([after("mark", ScriptedReply(text="first"), ScriptedReply(text="second"))])

    assert "first<|im_end|>" == CODER.decode(answer(script, array("i", ids).tobytes()).ids)


@pytest.mark.parametrize("opening", ["", "<think>\n", "<think>\n\n</think>\n\n"])
@given(cut=st.integers(0, 40))
def test_a_prompt_that_holds_the_beginning_of_its_reply_gets_the_rest(opening, cut):
    """T07: the ids are one sequence with one log-probability each, wherever it was cut."""
    declared = "" if opening.endswith("</think>\n\n") else opening
    script = Script(
        [always(ScriptedReply(text="so it is", reasoning="let me see"))], opening=declared
    )
    asked = prompt(("user", "go"), opening=opening)
    whole = answer(script, asked)
    given_before = whole.ids[: min(cut, len(whole.ids) - 1)]
    rest = answer(script, asked + array("i", given_before).tobytes())

    assert whole.ids == given_before + rest.ids
    assert whole.logprobs == whole.logprobs[: len(given_before)] + rest.logprobs
    assert len(given_before) == rest.resumed


def test_with_thinking_turned_off_the_reply_has_no_reasoning():
    """T10: the empty block of the generation prompt is input and comes once."""
    script = Script([always(ScriptedReply(text="so it is", reasoning="let me see"))])
    plan = answer(script, prompt(("user", "go"), opening="<think>\n\n</think>\n\n"))

    assert "so it is<|im_end|>" == CODER.decode(plan.ids)


def test_text_put_in_the_assistants_mouth_is_followed_by_the_whole_reply():
    plan = answer(
        Script([always(ScriptedReply(text="so it is"))]), prompt(("user", "go"), opening="Well, ")
    )

    assert "so it is<|im_end|>" == CODER.decode(plan.ids)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1), st.integers(0, 100))
def test_log_probabilities_depend_on_the_ids_before_and_survive_float32(ids, cut):
    values = logprobs(b"", ids)
    head, tail = ids[:cut], ids[cut:]

    assert values == logprobs(b"", head) + logprobs(array("i", head).tobytes(), tail)
    assert values == array("f", values).tolist()
    assert all(-5 < value < 0 for value in values)
