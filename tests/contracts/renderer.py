"""What every renderer promises: functions that take a subject and assert one promise each."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from gyre.types.conversation import Message, Tool, ToolCall
from gyre.types.protocols import GENERATION, PREFACE, Continuation, RenderedTokens, Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A renderer under the contract, and what its family's template lets it promise."""

    renderer: Renderer
    added: dict[str, int]
    """Added tokens of its tokenizer: none of them may come from outside text."""
    keeps_cycles: bool = True
    """A whole rendering repeats the replies of a tool cycle as they were sampled."""
    keeps_turns: bool = True
    """It does so across user turns as well."""
    shows_tools: bool = True
    thinks: bool = True
    """The template has room for thinking in a reply."""
    speaks_beside_calls: bool = True
    opens_turns_with_stop: bool = False

    def reply(self, message: Message) -> Message:
        """What of a reply this family can say."""
        if not self.thinks:
            message = replace(message, reasoning=None)
        if message.calls and not self.speaks_beside_calls:
            message = replace(message, text="")
        return message


TOOLS = (
    Tool(
        name="read_file",
        description="Read a file",
        parameters=json.dumps(
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "limit": {"type": "integer"},
                    "all": {"type": "boolean"},
                    "since": {"type": ["string", "null"]},
                    "flags": {"type": "object"},
                },
                "required": ["path"],
            }
        ),
    ),
)
ARGUMENTS = '{"path": "true", "limit": 3, "all": false, "flags": {"deep": null, "n": 1.5}}'
CALL = ToolCall(id="functions.read_file:0", name="read_file", arguments=ARGUMENTS)
SYSTEM = Message(role="system", text="You work on files.")
USER = Message(role="user", text="Please read the first file!")
NEXT = Message(role="user", text="And the next one?")
LATE = Message(role="system", text="Remember the limits.")
CALLING = Message(role="assistant", text="I look.", reasoning="It is a file.", calls=(CALL,))
ANSWER = Message(role="assistant", text="It is empty.", reasoning="Nothing is in it.")
RESULT = Message(role="tool", text="nothing found", answers=CALL.id, name=CALL.name)
OTHER_RESULT = Message(role="tool", text="a second result", answers=CALL.id, name=CALL.name)

SUFFIXES: tuple[tuple[Message, tuple[Message, ...]], ...] = (
    (CALLING, (RESULT,)),
    (CALLING, (RESULT, OTHER_RESULT)),
    (CALLING, (RESULT, OTHER_RESULT, NEXT)),
    (CALLING, (RESULT, LATE)),
    (ANSWER, (NEXT,)),
    (ANSWER, (LATE, NEXT)),
)
"""A reply, and what may follow it."""


def the_generation_prompt_comes_once_and_last(subject: Subject) -> None:
    """T11: also after several messages at once."""
    renderer = subject.renderer
    for messages in ([USER], [SYSTEM, USER], [SYSTEM, USER, LATE, NEXT]):
        rendered = renderer.render(messages, TOOLS)
        prompt = _owned(rendered, GENERATION)

        assert prompt
        assert 1 == _count(rendered.ids, prompt)
        assert prompt == rendered.ids[-len(prompt) :]
    for _, suffix in SUFFIXES:
        bridged = _bridge(subject, [1], suffix)
        ends = [owner for owner in bridged.owners if owner == GENERATION]

        assert ends == bridged.owners[len(bridged.owners) - len(ends) :]
        if ends:
            assert 1 == _count(bridged.ids, _owned(bridged, GENERATION))


def owners_follow_the_messages(subject: Subject) -> None:
    messages = [SYSTEM, USER, CALLING, RESULT, OTHER_RESULT, NEXT, ANSWER, LATE, NEXT]
    for tools in (TOOLS, ()):
        for start in (0, 1):
            said = messages[start:]
            rendered = subject.renderer.render(said, tools)
            order = [owner for owner in rendered.owners if owner != GENERATION]

            assert len(rendered.ids) == len(rendered.owners)
            assert sorted(order) == order
            assert set(range(len(said))) == set(order) - {PREFACE}
            for position, message in enumerate(said):
                spelled = subject.renderer.decode(_owned(rendered, position))
                assert message.text in spelled, (message, spelled)


def tools_stand_before_the_first_turn(subject: Subject) -> None:
    renderer = subject.renderer
    if not subject.shows_tools:
        return
    for messages in ([SYSTEM, USER], [USER]):
        rendered = renderer.render(messages, TOOLS)
        before = renderer.decode(rendered.ids).split(USER.text)[0]

        assert "read_file" in before
        assert "read_file" not in renderer.decode(renderer.render(messages, ()).ids)


def a_bridge_continues_as_a_whole_rendering_does(subject: Subject) -> None:
    """M14: later system messages and runs of tool results included."""
    for start in ([SYSTEM, USER], [USER]):
        for reply, suffix in SUFFIXES:
            is_cycle = all(message.role != "user" for message in suffix) and LATE not in suffix
            if not (subject.keeps_turns or (subject.keeps_cycles and is_cycle)):
                continue
            said = subject.reply(reply)
            whole = subject.renderer.render([*start, said, *suffix], TOOLS)
            prompt = subject.renderer.render(start, TOOLS).ids
            output = _sampled(subject, prompt, whole, len(start))
            bridged = _bridge(subject, output, suffix, prompt)

            assert whole.ids[: len(prompt)] == prompt
            assert whole.ids == prompt + output[: len(output) - bridged.trim] + bridged.ids


def a_bridge_tells_owners(subject: Subject) -> None:
    for _, suffix in SUFFIXES:
        bridged = _bridge(subject, [1], suffix)
        order = [owner for owner in bridged.owners if owner != GENERATION]

        assert len(bridged.ids) == len(bridged.owners)
        assert sorted(order) == order
        assert set(range(len(suffix))) == set(order)
        for position, message in enumerate(suffix):
            assert message.text in subject.renderer.decode(_owned(bridged, position))


def a_bridge_looks_no_further_back_than_the_opening(subject: Subject) -> None:
    long = Message(role="user", text="<think> one more word, " * 400)
    for before in ([SYSTEM, long], [USER, CALLING, Message(role="tool", text=long.text)]):
        prompt = subject.renderer.render(before, TOOLS).ids
        for output in ([*subject.renderer.encode("Done."), subject.renderer.stop_ids[0]], [5, 6]):
            for _, suffix in SUFFIXES:
                whole = subject.renderer.bridge(prompt, output, suffix, TOOLS)
                tail = subject.renderer.bridge(prompt[-64:], output, suffix, TOOLS)

                assert whole is not None
                assert whole == tail
            assert subject.renderer.parse(output, prompt, TOOLS) == subject.renderer.parse(
                output, prompt[-64:], TOOLS
            )


def what_was_sampled_stays_as_it_was(subject: Subject) -> None:
    """T02, T03, T24: other splits, endings that would merge, special tokens spelled out."""
    encode, stop = subject.renderer.encode, subject.renderer.stop_ids[0]
    text = "HAVING is done!" + "".join(subject.added)
    canonical = encode(text)
    letters = [token for letter in text for token in encode(letter)]
    kept = 0 if subject.opens_turns_with_stop else 1

    assert canonical != letters
    for output in (canonical, letters):
        for _, suffix in SUFFIXES:
            bridged = _bridge(subject, [*output, stop], suffix)
            plain = _bridge(subject, [*encode("Yes"), stop], suffix)

            assert 1 - kept == bridged.trim
            assert plain == bridged


def a_reply_cut_short_is_closed_by_input(subject: Subject) -> None:
    """T06: the close belongs to the first new message, and nothing sampled is dropped."""
    encode, stop = subject.renderer.encode, subject.renderer.stop_ids[0]
    prompt = _after_thinking(subject)
    for _, suffix in SUFFIXES:
        ended = _bridge(subject, [*encode("It is"), stop], suffix, prompt)
        cut = _bridge(subject, encode("It is"), suffix, prompt)

        assert 0 == cut.trim
        if subject.opens_turns_with_stop:
            assert (1, ended.ids) == (ended.trim, cut.ids)
        else:
            assert ended.ids == cut.ids[len(cut.ids) - len(ended.ids) :]
            assert len(cut.ids) > len(ended.ids)
        assert 0 == cut.owners[0]


def thinking_cut_short_is_closed_too(subject: Subject) -> None:
    """T06: whether the engine or the model itself ended the reply inside its thinking."""
    if not subject.thinks:
        return
    renderer = subject.renderer
    prompt = renderer.render([USER], ()).ids
    opened = renderer.decode(prompt).rstrip().endswith("<think>")
    output = ([] if opened else _special(subject, "<think>")) + renderer.encode("I wonder")
    stopped = [*output, renderer.stop_ids[0]]
    cut = _bridge(subject, output, [NEXT], prompt)
    ended = _bridge(subject, stopped, [NEXT], prompt)

    assert (0, 1) == (cut.trim, ended.trim)
    assert cut.ids == ended.ids
    assert "</think>" in renderer.decode(_owned(cut, 0))
    for one in (output, stopped):
        parsed = renderer.parse(one, prompt, ())
        assert ("", "I wonder") == (parsed.text, (parsed.reasoning or "").strip())


def a_reply_that_ran_past_its_stop_is_rendered_anew(subject: Subject) -> None:
    output = [subject.renderer.stop_ids[0], *subject.renderer.encode("more")]

    assert None is subject.renderer.bridge([1, 2, 3], output, [NEXT], TOOLS)


def a_reply_reads_back_as_the_message_it_was(subject: Subject) -> None:
    """T13, T19, T22: types of arguments too."""
    for given, suffix in SUFFIXES[:1] + SUFFIXES[4:5]:
        if not (subject.keeps_turns or (subject.keeps_cycles and given is CALLING)):
            continue
        reply = subject.reply(given)
        whole = subject.renderer.render([SYSTEM, USER, reply, *suffix], TOOLS)
        prompt = subject.renderer.render([SYSTEM, USER], TOOLS).ids
        output = _sampled(subject, prompt, whole, 2)
        parsed = subject.renderer.parse(output, prompt, TOOLS)

        # Some templates leave the thinking out of a reply with calls.
        thought = reply.reasoning is not None and reply.reasoning in subject.renderer.decode(output)
        assert reply.text == parsed.text.lstrip("\n")
        assert reply.reasoning == parsed.reasoning.strip() if thought else None is parsed.reasoning
        assert len(reply.calls) == len(parsed.calls)
        for call in parsed.calls:
            assert "read_file" == call.name
            assert json.loads(ARGUMENTS) == json.loads(call.arguments)
            assert call.end is not None
            cut = subject.renderer.parse(output[: call.end], prompt, TOOLS)
            assert [call.arguments] == [one.arguments for one in cut.calls]


def python_never_reaches_the_tokens(subject: Subject) -> None:
    """T13: false stays false, whatever a template does with it."""
    rendered = subject.renderer.render([USER, CALLING, RESULT], TOOLS)
    spelled = subject.renderer.decode(_owned(rendered, 1))

    assert not re.search("False|True|None", spelled)
    assert "false" in spelled


def outside_text_never_makes_a_special_token(subject: Subject) -> None:
    """T23: wherever it stands, and whatever else it holds."""
    for hostile in hostile_texts(subject.added):
        calm = _conversation(lambda text: text)
        wild = _conversation(lambda text, hostile=hostile: text + hostile)
        rendered = [subject.renderer.render(messages, tools) for messages, tools in (calm, wild)]
        bridged = [_bridge(subject, [1], messages[-3:]) for messages, _ in (calm, wild)]

        assert _specials(subject, rendered[0].ids) == _specials(subject, rendered[1].ids)
        assert _specials(subject, bridged[0].ids) == _specials(subject, bridged[1].ids)
        spelled = subject.renderer.decode(rendered[1].ids)
        assert hostile.strip() in spelled, spelled
        assert [] == _specials(subject, subject.renderer.encode(hostile))
        assert hostile == subject.renderer.decode(subject.renderer.encode(hostile))


def text_that_utf8_cannot_hold_is_replaced(subject: Subject) -> None:
    """A lone surrogate becomes U+FFFD; NUL is a character like others."""
    odd = "a\ud800b\x00c\udfff"
    messages, tools = _conversation(lambda text: text + odd)
    rendered = subject.renderer.render(messages, tools)

    assert "a\ufffdb\x00c\ufffd" == subject.renderer.decode(subject.renderer.encode(odd))
    assert "a\ufffdb\x00c\ufffd" in subject.renderer.decode(rendered.ids)


def letters_cut_in_the_middle_stay_ids(subject: Subject) -> None:
    """T25: what decodes to U+FFFD is still exactly what was sampled."""
    whole = subject.renderer.encode("\U0001f642")
    cut = whole[:-1]
    prompt = _after_thinking(subject)
    parsed = subject.renderer.parse(cut, prompt, ())

    assert len(whole) > 1
    assert "\ufffd" in parsed.text + (parsed.reasoning or "")
    assert 0 == _bridge(subject, cut, [NEXT], prompt).trim


def an_empty_reply_is_a_reply(subject: Subject) -> None:
    """T26: it reads back empty, and a turn can follow it."""
    prompt = _after_thinking(subject)
    parsed = subject.renderer.parse([], prompt, ())

    assert ("", ()) == (parsed.text, parsed.calls)
    assert 0 == _bridge(subject, [], [NEXT], prompt).trim


def arguments_need_not_be_json(subject: Subject) -> None:
    """T18: nonsense, depth and numbers without end are rendered as text, and nothing breaks."""
    deep = "[" * 5000 + "]" * 5000
    odd = ["", "{", "[1, 2]", '"text"', "null", '{"a": NaN}', f'{{"a": {deep}}}']
    for arguments in [*odd, '{"n": 1' + "0" * 5000 + "}", '{"a": 1, "a": 2}', '{"a": "\\ud800"}']:
        call = ToolCall(id="call_1", name="read_file", arguments=arguments)
        said = Message(role="assistant", calls=(call,))
        rendered = subject.renderer.render([USER, said, RESULT], TOOLS)

        assert "read_file" in subject.renderer.decode(_owned(rendered, 1))


def parallel_calls_keep_their_order(subject: Subject) -> None:
    """T17: results stand as they were sent, not as the calls were made."""
    calls = tuple(
        ToolCall(id=f"functions.read_file:{n}", name="read_file", arguments=f'{{"path": "p{n}"}}')
        for n in range(3)
    )
    results = [
        Message(
            role="tool", text=f"result {n}", answers=f"functions.read_file:{n}", name="read_file"
        )
        for n in (2, 0, 1)
    ]
    said = Message(role="assistant", calls=calls)
    spelled = subject.renderer.decode(subject.renderer.render([USER, said, *results], ()).ids)
    places = [
        spelled.index(text) for text in ("p0", "p1", "p2", "result 2", "result 0", "result 1")
    ]

    assert sorted(places) == places


def whatever_is_sampled_can_be_read_and_continued(subject: Subject) -> None:
    """No sequence of ids raises; visible text is never lost to a malformed call."""
    renderer = subject.renderer
    pieces = [[token] for token in subject.added.values() if token not in renderer.stop_ids]
    pieces += [renderer.encode(text) for text in _FRAGMENTS]
    chooser = Random(1)
    prompt = renderer.render([USER], TOOLS).ids
    for _ in range(100):
        output = [token for _ in range(chooser.randrange(12)) for token in chooser.choice(pieces)]
        for end in ([], [renderer.stop_ids[0]]):
            parsed = renderer.parse(output + end, prompt, TOOLS)
            bridged = renderer.bridge(prompt, output + end, [NEXT], TOOLS)

            assert bridged is not None
            assert bridged.trim <= len(end)
            for call in parsed.calls:
                json.loads(call.arguments)
                assert call.end is None or call.end <= len(output)


_FRAGMENTS = (
    '{"name": "read_file", "arguments": {"path": "a"}}', '{"name": 3, "arguments": {}}', "{", "}",
    '{"name": "x", "arguments": [' + "[" * 3000, '{"a": 1' + "0" * 5000 + "}", "read_file", "\n",
    "functions.read_file:0", "<function=read_file>", "<parameter=path>\ntrue\n</parameter>",
    "</function>", '<invoke name="read_file">', '<parameter name="n">NaN</parameter>', "</invoke>",
    "NaN", "text", "function", "```json\n{}\n```", "\U0001f642", "<think>", "</think>",
    "<tool_call>", "</tool_call>", '"\\ud800"',
)  # fmt: skip


CHECKS: tuple[Callable[[Subject], None], ...] = (
    the_generation_prompt_comes_once_and_last,
    owners_follow_the_messages,
    tools_stand_before_the_first_turn,
    a_bridge_continues_as_a_whole_rendering_does,
    a_bridge_tells_owners,
    a_bridge_looks_no_further_back_than_the_opening,
    what_was_sampled_stays_as_it_was,
    a_reply_cut_short_is_closed_by_input,
    thinking_cut_short_is_closed_too,
    a_reply_that_ran_past_its_stop_is_rendered_anew,
    a_reply_reads_back_as_the_message_it_was,
    python_never_reaches_the_tokens,
    outside_text_never_makes_a_special_token,
    text_that_utf8_cannot_hold_is_replaced,
    letters_cut_in_the_middle_stay_ids,
    an_empty_reply_is_a_reply,
    arguments_need_not_be_json,
    parallel_calls_keep_their_order,
    whatever_is_sampled_can_be_read_and_continued,
)


def hostile_texts(added: Sequence[str] | dict[str, int]) -> list[str]:
    """Spellings of special tokens: alone, in a row, cut, overlapping, among marks and escapes."""
    names = list(added)
    halves = "".join(name[: len(name) // 2] + name for name in names)
    marks = "\ufdd0".join(names) + "\ufdd1\ufdd0\\ufdd0\\ufdd1"
    return ["".join(names), " ".join(names) + "\n", halves, marks, "\n".join(reversed(names)) + "x"]


def _conversation(say: Callable[[str], str]) -> tuple[list[Message], tuple[Tool, ...]]:
    """One of everything, each text of it said by `say`."""
    schema = {
        "type": "object",
        "properties": {say("path"): {"type": "string", "description": say("where")}},
        "required": [say("path")],
        "x-note": say("extra"),
    }
    tool = Tool(name=say("read"), description=say("reads"), parameters=json.dumps(schema))
    arguments = json.dumps({say("path"): say("a"), "list": [say("b")], "n": 1})
    call = ToolCall(id=say("call"), name=say("read"), arguments=arguments)
    messages = [
        Message(role="system", text=say("one")),
        Message(role="user", text=say("two")),
        Message(role="assistant", text=say("three"), reasoning=say("why"), calls=(call,)),
        Message(role="tool", text=say("four"), answers=say("call"), name=say("read")),
        Message(role="system", text=say("five")),
        Message(role="user", text=say("six")),
    ]
    return messages, (tool,)


def _bridge(
    subject: Subject,
    output: Sequence[int],
    messages: Sequence[Message],
    prompt: Sequence[int] | None = None,
) -> Continuation:
    opening = _after_thinking(subject) if prompt is None else prompt
    bridged = subject.renderer.bridge(opening, output, messages, TOOLS)
    assert bridged is not None
    return bridged


def _after_thinking(subject: Subject) -> list[int]:
    """A prompt whose reply has its thinking behind it."""
    prompt = subject.renderer.render([USER], ()).ids
    return prompt + _special(subject, "</think>") if subject.thinks else prompt


def _special(subject: Subject, text: str) -> list[int]:
    """A template's own word: its token, or what spells it."""
    return [subject.added[text]] if text in subject.added else subject.renderer.encode(text)


def _sampled(
    subject: Subject, prompt: Sequence[int], whole: RenderedTokens, reply: int
) -> list[int]:
    """The reply within a whole rendering, as an engine would have sampled it."""
    stops = subject.renderer.stop_ids
    end = max(at for at, owner in enumerate(whole.owners) if owner == reply) + 1
    output = whole.ids[len(prompt) : end]
    last = [at for at, token in enumerate(output) if token in stops]
    return output[: last[-1] + 1] if last else [*output, stops[0]]


def _owned(rendered: RenderedTokens | Continuation, owner: int) -> list[int]:
    pairs = zip(rendered.ids, rendered.owners, strict=True)
    return [token for token, whose in pairs if whose == owner]


def _specials(subject: Subject, ids: Sequence[int]) -> list[int]:
    added = set(subject.added.values())
    return [token for token in ids if token in added]


def _count(ids: Sequence[int], part: Sequence[int]) -> int:
    size = len(part)
    return sum(list(ids[at : at + size]) == list(part) for at in range(len(ids) - size + 1))
