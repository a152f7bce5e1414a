import json
from functools import cache

import pytest
from renderers.base import create_renderer
from renderers.configs import config_from_name
from tests.contracts.families import ADDED
from tests.contracts.families import tokens_of as tokens

from gyre.renderers.families import FAMILIES
from gyre.renderers.family_renderer import FamilyRenderer
from gyre.renderers.tokenizer import PackageTokenizer
from gyre.testing.tokenizer import QWEN3, tokenizer, tokenizer_json
from gyre.types.conversation import Message, Tool, ToolCall
from gyre.types.errors import ConfigError, RequestError
from gyre.types.protocols import PREFACE

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}
TOOL = Tool(name="read", description="Reads", parameters=json.dumps(SCHEMA))
USER = Message(role="user", text="Read it.")
CALL = ToolCall(id="call_1", name="read", arguments='{"path": "a", "n": 1}')
CALLING = Message(role="assistant", text="I read.", reasoning="Hm.", calls=(CALL,))
RESULT = Message(role="tool", text="nothing", answers="call_1", name="read")


@cache
def renderer(name, **settings):
    return FamilyRenderer(name, tokens(name), **settings)


class Bare:
    """The tokenizer as the package would have it, without marks."""

    name_or_path = "bare"
    unk_token_id = None
    eos_token_id = None

    def __init__(self, added):
        self._tokenizer = tokenizer(added)

    def encode(self, text, **_):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, **_):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def convert_tokens_to_ids(self, token):
        return self._tokenizer.token_to_id(token)


@pytest.mark.parametrize("name", ADDED)
def test_calm_conversations_get_the_package_s_own_ids(name):
    """Marks and shapes change nothing where nothing is to be guarded."""
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": "Fine.", "reasoning_content": "Hm."},
        {"role": "user", "content": "And now?"},
    ]
    messages = [
        Message(role=one["role"], text=one["content"], reasoning=one.get("reasoning_content"))
        for one in said
    ]
    function = {"name": "read", "description": "Reads", "parameters": SCHEMA}
    expected = create_renderer(Bare(ADDED[name]), config_from_name(name)).render(
        said, tools=[{"type": "function", "function": function}], add_generation_prompt=True
    )

    assert expected.token_ids == renderer(name, thinking="template").render(messages, [TOOL]).ids


def test_qwen3_shows_tools_as_its_template_does():
    spelled = renderer("qwen3").decode(renderer("qwen3").render([USER], [TOOL]).ids)

    assert (
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user "
        "query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
        '<tools>\n{"type": "function", "function": {"name": "read", "description": "Reads", '
        f'"parameters": {json.dumps(SCHEMA)}}}}}\n</tools>\n\nFor each function call, return a '
        "json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\nRead it.<|im_end|>\n<|im_start|>assistant\n"
    ) == spelled


@pytest.mark.parametrize("name", [name for name in ADDED if name.startswith("glm")])
@pytest.mark.parametrize("follower", [USER, RESULT], ids=["user", "tool"])
def test_the_stop_that_opens_a_turn_is_trimmed_whichever_it_was(name, follower):
    """T05: and the turn brings its own opener; a last reply keeps its stop."""
    one = renderer(name)
    prompt = one.render([USER], ()).ids
    said = [*one.encode("Hm."), tokens(name).added["</think>"], *one.encode("Yes.")]
    bridges = [one.bridge(prompt, [*said, stop], [follower], ()) for stop in one.stop_ids]
    opener = "<|user|>" if follower is USER else "<|observation|>"

    assert 3 == len(bridges)
    assert [1, 1, 1] == [bridged.trim for bridged in bridges]
    assert bridges[0] == bridges[1] == bridges[2]
    assert [tokens(name).added[opener]] == bridges[0].ids[:1]
    assert 1 == bridges[0].ids.count(tokens(name).added[opener])


def test_an_opener_belongs_to_the_turn_it_opens():
    """T05: as it does when the turn follows a sampled reply."""
    one = renderer("glm-5")
    rendered = one.render([USER, CALLING, RESULT, USER, CALLING, RESULT], ())
    number = tokens("glm-5").added["<|observation|>"]
    owners = [
        who for token, who in zip(rendered.ids, rendered.owners, strict=True) if token == number
    ]

    assert [2, 5] == owners


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3.5", "qwen3.6", "glm-5", "nemotron-3", "minimax-m2"]
)
def test_a_new_user_turn_is_bridged_only_if_thinking_stays(name):
    """T09: tool cycles are bridged either way."""
    for thinking, over_turns in (("all", True), ("tool_cycle", False), ("template", False)):
        one = renderer(name, thinking=thinking)
        prompt = one.render([USER], ()).ids
        output = [*one.encode("Hm."), tokens(name).added["</think>"], one.stop_ids[0]]

        assert over_turns is (one.bridge(prompt, output, [USER], ()) is not None)
        assert None is not one.bridge(prompt, output, [RESULT], ())


def test_the_thinking_that_stays_is_rendered_too_where_the_template_can():
    """T09: so that a fork does not lose what the path had."""
    messages = [USER, Message(role="assistant", text="Yes.", reasoning="Because."), USER]
    for name, family in FAMILIES.items():
        if family.keeps is None or name == "gpt-oss":
            continue
        kept, lost = (renderer(name, thinking=how) for how in ("all", "tool_cycle"))

        assert "Because." in kept.decode(kept.render(messages, ()).ids)
        assert "Because." not in lost.decode(lost.render(messages, ()).ids)


THINKERS = [name for name in ADDED if FAMILIES[name].thinks is not None]


@pytest.mark.parametrize("name", THINKERS)
def test_a_model_that_does_not_think_has_its_empty_thinking_in_the_prompt(name):
    """T10: it is input, it comes once, and the next prompt still begins with this one."""
    one = renderer(name, enable_thinking=False)
    said = Message(role="assistant", text="Yes.")
    prompt = one.render([USER], ()).ids
    longer = one.render([USER, said, USER], ()).ids
    output = [*one.encode("\nYes." if name == "glm-4.5" else "Yes."), one.stop_ids[0]]
    bridged = one.bridge(prompt, output, [USER], ())

    assert 1 == one.decode(prompt).count("</think>")
    assert one.decode(prompt).rstrip().endswith("</think>")
    assert longer == prompt + output[: len(output) - bridged.trim] + bridged.ids
    assert "Yes." == one.parse(output, prompt, ()).text.strip()


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("qwen3", {}, "qwen3 thinking=all"),
        ("qwen3", {"thinking": "template"}, "qwen3 thinking=template"),
        ("qwen3", {"enable_thinking": False}, "qwen3 thinking=all enable_thinking=false"),
        ("qwen3.5", {}, "qwen3.5 thinking=all enable_thinking=true"),
        ("glm-5", {"thinking": "tool_cycle"}, "glm-5 thinking=tool_cycle"),
        ("kimi-k2.5", {"enable_thinking": False}, "kimi-k2.5 thinking=all enable_thinking=false"),
    ],
)
def test_a_name_tells_the_settings_that_change_tokens(name, settings, expected):
    """M02: they are part of what must match."""
    assert expected == renderer(name, **settings).name


def test_a_setting_that_a_family_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="enable_thinking: llama-3 has no such setting"):
        renderer("llama-3", enable_thinking=False)


def test_a_tokenizer_of_another_family_is_refused():
    with pytest.raises(ConfigError, match=r"test: no tokenizer of the family glm-5.*gMASK"):
        FamilyRenderer("glm-5", PackageTokenizer(tokenizer_json(QWEN3), name="test"))


def test_gpt_oss_says_which_file_its_encoder_wants(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))

    with pytest.raises(ConfigError, match=r"o200k_base\.tiktoken; set TIKTOKEN_ENCODINGS_BASE"):
        FamilyRenderer("gpt-oss", PackageTokenizer(tokenizer_json(QWEN3), name="test"))


@pytest.mark.parametrize("parameters", ["", "[]", "{", '{"a": ' * 100 + "1" + "}" * 100])
def test_a_schema_that_is_no_object_is_refused_with_its_place(parameters):
    broken = Tool(name="write", description="", parameters=parameters)

    with pytest.raises(RequestError, match=r"tools\[1\]: parameters of 'write': expected a JSON"):
        renderer("qwen3").render([USER], [TOOL, broken])


def test_a_conversation_that_a_template_does_not_take_is_refused():
    with pytest.raises(RequestError, match=r"template of qwen3\.8 .* No user query"):
        renderer("qwen3.8").render([Message(role="system", text="Be brief.")], ())
    with pytest.raises(RequestError, match="No messages"):
        renderer("qwen3").render([], ())


@pytest.mark.parametrize("name", ["nemotron-3", "nemotron-3-ultra", "prime-qwen3"])
def test_a_word_that_a_template_puts_between_brackets_makes_no_token(name):
    """T23: `<think>` out of the key "think" is text."""
    schema = SCHEMA | {"think": "a", "tool_call": {"tool_response": "b"}}
    odd = Tool(name="read", description="Reads", parameters=json.dumps(schema))
    one, added = renderer(name), set(tokens(name).added.values())
    calm, wild = (one.render([USER], [tool]).ids for tool in (TOOL, odd))

    assert "<think>a</think>" in one.decode(wild)
    assert [x for x in calm if x in added] == [x for x in wild if x in added]


def test_ids_of_kimi_name_the_function_and_results_follow():
    """T15: what the model wrote itself is kept; what others wrote is renamed."""
    own = ToolCall(id="call_0", name="read", arguments="{}", native_id="functions.read:7")
    messages = [
        USER,
        Message(role="assistant", calls=(own,)),
        Message(role="tool", text="one", answers="functions.read:7", name="read"),
        Message(role="assistant", calls=(CALL,)),
        RESULT,
    ]
    spelled = renderer("kimi-k2").decode(renderer("kimi-k2").render(messages, ()).ids)

    assert "<|tool_call_begin|>functions.read:7<|tool_call_argument_begin|>{}" in spelled
    assert "## Return of functions.read:7\none" in spelled
    assert "<|tool_call_begin|>functions.read:1<|tool_call_argument_begin|>" in spelled
    assert "## Return of functions.read:1\nnothing" in spelled
    assert "call_1" not in spelled


def test_a_native_id_is_read_from_the_reply():
    one = renderer("kimi-k2")
    ids = tokens("kimi-k2").encode(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:3<|tool_call_argument_begin|>"
        '{"path": "a"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
    )
    (call,) = one.parse(ids, one.render([USER], ()).ids, ()).calls

    assert ("read", '{"path": "a"}', "functions.read:3") == (
        call.name, call.arguments, call.native_id
    )  # fmt: skip


def qwen_reply(text):
    return tokens("qwen3").encode(text), renderer("qwen3").render([USER], [TOOL]).ids


def test_malformed_calls_are_part_of_the_text():
    bad = '<tool_call>\n{"name": "read", "arguments": {\n</tool_call>'
    good = '<tool_call>\n{"name": "read", "arguments": {"n":  1}}\n</tool_call>'
    ids, prompt = qwen_reply(f"I read.\n{bad}\n{good}\n<tool_call>\n{{")
    parsed = renderer("qwen3").parse(ids, prompt, [TOOL])

    assert f"I read.\n{bad}\n<tool_call>\n{{" == parsed.text
    assert ['{"n":  1}'] == [call.arguments for call in parsed.calls]


@pytest.mark.parametrize(
    "inside", ["[" * 5000, '{"name": "a", "arguments": {"n": 1' + "0" * 5000 + "}}"]
)
def test_a_call_that_python_cannot_hold_does_no_harm(inside):
    """T18: it is text, or a call whose digits are kept."""
    ids, prompt = qwen_reply(f"<tool_call>\n{inside}\n</tool_call><|im_end|>")
    parsed = renderer("qwen3").parse(ids, prompt, ())

    assert inside in parsed.text + "".join(
        f'{{"name": "a", "arguments": {c.arguments}}}' for c in parsed.calls
    )


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("read<arg_key>path</arg_key><arg_value>true</arg_value>", {"path": "true"}),
        ("read<arg_key>n</arg_key><arg_value>5</arg_value>", {"n": 5}),
        ("read<arg_key>n</arg_key><arg_value>many</arg_value>", {"n": "many"}),
        ("read<arg_key>other</arg_key><arg_value>text</arg_value>", {"other": "text"}),
        ("unknown<arg_key>path</arg_key><arg_value>x</arg_value>", {"path": "x"}),
        ("read", {}),
        ("read\n<arg_value>x</arg_value>", None),
        ("read<arg_key>path</arg_key>", None),
    ],
)
def test_bare_arguments_are_read_by_their_schema(inside, expected):
    """T19: a call whose arguments break the schema is still a call; a broken one is text."""
    one = renderer("glm-5")
    ids = tokens("glm-5").encode(f"Hm.</think><tool_call>{inside}</tool_call><|observation|>")
    parsed = one.parse(ids, one.render([USER], ()).ids, [TOOL])
    found = [json.loads(call.arguments) for call in parsed.calls]

    assert ([] if expected is None else [expected]) == found
    assert (f"<tool_call>{inside}</tool_call>" if expected is None else "") == parsed.text


def test_calls_that_share_a_block_end_together():
    invoke = '<invoke name="read">\n<parameter name="path">{}</parameter>\n</invoke>\n'
    one = renderer("minimax-m2")
    ids = tokens("minimax-m2").encode(
        f"Hm.</think><minimax:tool_call>\n{invoke.format('a')}{invoke.format('b')}</minimax:tool_call>"
    )
    parsed = one.parse(ids, one.render([USER], ()).ids, [TOOL])

    assert [None, len(ids)] == [call.end for call in parsed.calls]


def test_a_reply_that_the_client_began_inside_thinking_goes_on_there():
    """M13: the prompt does not end as a template's does, so all of its end is looked at."""
    one = renderer("qwen3")
    begun = one.render([USER], ()).ids + tokens("qwen3").encode("<think>\nLet me")
    parsed = one.parse(tokens("qwen3").encode(" see.</think>\n\nYes."), begun, ())

    assert ("see.", "Yes.") == (parsed.reasoning, parsed.text)


def test_thinking_that_the_prompt_opens_after_a_tool_result_is_thinking():
    """Whatever the result itself says about thinking."""
    one = renderer("deepseek-r1")
    talk = Message(role="tool", text="<think> </think> <think>", answers="call_1", name="read")
    prompt = one.render([USER, CALLING, talk], ()).ids
    for tail in (prompt, prompt[-8:]):
        parsed = one.parse(one.encode("Hm.</think>Yes."), tail, ())

        assert ("Hm.", "Yes.") == (parsed.reasoning, parsed.text)


@pytest.mark.parametrize("name", ADDED)
def test_tools_and_system_text_come_before_message_one(name):
    """What both share belongs to the system message; without one it is the preface."""
    system = Message(role="system", text="Be brief.")
    first = renderer(name).render([system, USER], [TOOL])
    alone = renderer(name).render([USER], [TOOL])

    assert {PREFACE, 0} >= set(first.owners[: first.owners.index(1)])
    assert {PREFACE} >= set(alone.owners[: alone.owners.index(0)])


def test_one_message_may_not_be_an_assistant_s():
    assert None is renderer("qwen3").bridge([1], [2], [CALLING], ())
    assert None is renderer("qwen3").bridge([1], [2], [], ())
