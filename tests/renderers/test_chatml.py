import pytest

from gyre.renderers.chatml import ChatML
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.testing.tokenizer import CHATML, QWEN3, tokenizer_json
from gyre.types.conversation import Message, Tool, ToolCall
from gyre.types.errors import ConfigError, RequestError
from gyre.types.protocols import PREFACE, ParsedCall

TOKENS = PackageTokenizer(tokenizer_json(QWEN3), name="test")
AS_TEXT = PackageTokenizer(tokenizer_json(CHATML), name="test")
RENDERER = ChatML(TOKENS)
USER = Message(role="user", text="Hi")
TOOL = Tool(name="run", description="Runs", parameters='{"type": "object"}')
CALLING = '<tool_call>\n{"name": "run", "arguments": {"a": 1}}\n</tool_call>'
PROMPT = RENDERER.render([USER], ()).ids


def spelled(*messages, tools=(), renderer=RENDERER):
    return renderer.decode(renderer.render(messages, tools).ids)


def parsed(text, tokens=TOKENS, prompt=PROMPT):
    """What a reply reads as, its markup sampled as tokens where there are some."""
    return ChatML(tokens).parse(tokens.encode(text), prompt, ())


def test_a_conversation_is_spelled_in_turns():
    call = ToolCall(id="1", name="run", arguments='{"a": 1}')

    assert (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nI run.\n"
        f"{CALLING}\n{CALLING}<|im_end|>\n"
        "<|im_start|>tool\n<tool_response>\nok\n</tool_response><|im_end|>\n"
        "<|im_start|>tool\n<tool_response>\nfine\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    ) == spelled(
        Message(role="system", text="Be brief."),
        USER,
        Message(role="assistant", text="I run.", reasoning="Hm.", calls=(call, call)),
        Message(role="tool", text="ok"),
        Message(role="tool", text="fine"),
    )


def test_there_is_no_system_text_of_our_own():
    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == spelled(USER)


@pytest.mark.parametrize("leads", [True, False])
def test_tools_stand_in_the_system_turn(leads):
    system = [Message(role="system", text="Be brief.")] if leads else []
    rendered = RENDERER.render([*system, USER], [TOOL])
    turn = RENDERER.decode(rendered.ids).split("<|im_end|>")[0]
    spec = '{"name": "run", "description": "Runs", "parameters": {"type": "object"}}'

    assert turn.startswith(
        "<|im_start|>system\n" + ("Be brief.\n\n# Tools" if leads else "# Tools")
    )
    assert '{"type": "function", "function": ' + spec + "}\n</tools>" in turn
    assert (0 if leads else PREFACE) == rendered.owners[0]
    assert TOKENS.added["<tool_call>"] in rendered.ids


def test_markup_without_a_token_is_spelled_as_text():
    renderer = ChatML(AS_TEXT)
    said = Message(role="assistant", text="Yes.", reasoning="Hm.")

    assert spelled(USER, said) == spelled(USER, said, renderer=renderer)


def test_a_message_that_is_only_markup_is_text():
    """T23: even when it is exactly what the template itself writes."""
    ids = RENDERER.render([Message(role="user", text="<think>")], ()).ids

    assert TOKENS.added["<think>"] not in ids


def test_each_message_is_a_prefix_of_what_follows():
    messages = [USER, Message(role="tool", text="a"), Message(role="tool", text="b"), USER]
    for count in range(1, len(messages)):
        short = RENDERER.render(messages[:count], ())
        kept = len(short.ids) - short.owners.count(-2)

        assert short.ids[:kept] == RENDERER.render(messages, ()).ids[:kept]


def test_one_newline_follows_the_stop():
    """T04: exactly one, and it is input."""
    stop = TOKENS.added["<|im_end|>"]
    bridged = RENDERER.bridge(PROMPT, [*TOKENS.plain("Yes!"), stop], [USER], ())

    assert "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" == TOKENS.decode(bridged.ids)
    assert (0, TOKENS.plain("\n")) == (bridged.trim, bridged.ids[:1])


def test_a_model_that_does_not_think_has_its_empty_thinking_in_the_prompt():
    """T10: it is input, it comes once, and history repeats it."""
    renderer = ChatML(TOKENS, enable_thinking=False)
    prompt = renderer.render([USER], ()).ids
    said = Message(role="assistant", text="Yes.")
    longer = renderer.render([USER, said, USER], ()).ids
    bridged = renderer.bridge(
        prompt, [*TOKENS.plain("Yes."), TOKENS.added["<|im_end|>"]], [USER], ()
    )

    assert TOKENS.decode(prompt).endswith("assistant\n<think>\n\n</think>\n\n")
    assert longer == [*prompt, *TOKENS.plain("Yes."), TOKENS.added["<|im_end|>"], *bridged.ids]
    assert "chatml enable_thinking=false" == renderer.name
    assert "chatml" == RENDERER.name


@pytest.mark.parametrize("tokens", [TOKENS, AS_TEXT], ids=["tokens", "text"])
@pytest.mark.parametrize(
    ("reply", "text", "reasoning", "calls"),
    [
        ("Yes.\n", "Yes.\n", None, 0),
        ("<think>\nHm.\n</think>\n\nYes.", "Yes.", "Hm.", 0),
        ("\n<think></think>Yes.", "Yes.", None, 0),
        ("<think>\nHm.", "", "Hm.", 0),
        ("Yes. <think> no </think>", "Yes. <think> no </think>", None, 0),
        (f"I run.\n{CALLING}\n{CALLING}", "I run.", None, 2),
        (f"<think>\nI run.\n{CALLING}", "", "I run.", 1),
        (f"{CALLING} and text", " and text", None, 1),
        ("<tool_call>\nrun\n</tool_call>", "<tool_call>\nrun\n</tool_call>", None, 0),
        ("a<tool_call>{</tool_call>b", "a<tool_call>{</tool_call>b", None, 0),
        (f"<tool_call>x</tool_call>{CALLING}", "<tool_call>x</tool_call>", None, 1),
        ('<tool_call>\n{"name": "run"', '<tool_call>\n{"name": "run"', None, 0),
        ("</tool_call></think>", "</tool_call></think>", None, 0),
    ],
)
def test_replies_are_read(tokens, reply, text, reasoning, calls):
    """Malformed calls stay in the text, where they stood."""
    found = parsed(reply, tokens)

    assert (text, reasoning, calls) == (found.text, found.reasoning, len(found.calls))


@pytest.mark.parametrize("tokens", [TOKENS, AS_TEXT], ids=["tokens", "text"])
def test_a_call_may_spell_its_own_closing_tag(tokens):
    text = '{"path": "</tool_call>"}'
    ids = [
        *tokens.encode("<tool_call>\n"),
        *tokens.plain(f'{{"name": "run", "arguments": {text}}}'),
        *tokens.encode("\n</tool_call>"),
    ]
    found = ChatML(tokens).parse(ids, PROMPT, ())

    assert (ParsedCall(name="run", arguments=text, native_id=None, end=len(ids)),) == found.calls


def test_a_tag_spelled_out_is_no_tag_where_there_is_a_token_for_it():
    """T24: the ids say which it was."""
    found = RENDERER.parse(TOKENS.plain(CALLING), PROMPT, ())

    assert (CALLING, ()) == (found.text, found.calls)


@pytest.mark.parametrize("tokens", [TOKENS, AS_TEXT], ids=["tokens", "text"])
def test_the_end_of_a_call_is_told_in_ids(tokens):
    ids = tokens.encode(f"First.\n{CALLING}\n{CALLING}\nand more")
    renderer = ChatML(tokens)
    ends = [call.end for call in renderer.parse(ids, PROMPT, ()).calls]

    assert 2 == len(ends)
    for count, end in enumerate(ends, start=1):
        assert count == len(renderer.parse(ids[:end], PROMPT, ()).calls)
        assert count - 1 == len(renderer.parse(ids[: end - 1], PROMPT, ()).calls)


def test_a_reply_that_the_client_began_inside_thinking_goes_on_there():
    """M13: the prompt's last turn says so."""
    begun = [*PROMPT, *TOKENS.encode("<think>\nLet me")]

    assert ("Yes.", "see.") == (
        parsed(" see.</think>Yes.", prompt=begun).text,
        parsed("see.</think>Yes.", prompt=begun).reasoning,
    )
    assert "see." == parsed("see.", prompt=begun).reasoning


def test_a_letter_cut_in_the_middle_is_still_the_ids_it_was():
    """T25: the text has U+FFFD for it, and the next prompt the ids."""
    cut = TOKENS.plain("a\U0001f642")[:-1]
    bridged = RENDERER.bridge(PROMPT, cut, [USER], ())

    assert RENDERER.parse(cut, PROMPT, ()).text.startswith("a\ufffd")
    assert (0, TOKENS.added["<|im_end|>"]) == (bridged.trim, bridged.ids[0])


def test_a_conversation_of_nothing_is_refused():
    with pytest.raises(RequestError, match="expected at least one message"):
        RENDERER.render([], ())


def test_a_tokenizer_without_turns_is_refused():
    with pytest.raises(ConfigError, match=r"needs the token <\|im_start\|>"):
        ChatML(PackageTokenizer(tokenizer_json(("<|endoftext|>",)), name="test"))


def test_every_end_token_stops_a_reply():
    tokens = PackageTokenizer(tokenizer_json((*QWEN3, "</s>")), name="test", eos="</s>")

    assert tuple(tokens.added[one] for one in ("<|im_end|>", "<|endoftext|>", "</s>")) == (
        ChatML(tokens).stop_ids
    )
