"""A call of a tool that a client offers by its type alone, through a session and back."""

import json

import pytest

from gyre.proxy.dialects.openai_responses import OpenAIResponses
from gyre.testing.renderer import reply_ids

DIALECT = OpenAIResponses()
USER = {"role": "user", "content": "do it"}


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("local_shell", '{"timeout_ms": 9, "command": ["ls"]}', {"output": "a"}),
        ("shell", '{ "commands": ["ls"] }', {"output": [{"stdout": "a", "stderr": ""}]}),
        ("apply_patch", '{"path": "a", "type": "delete_file"}', {"status": "completed"}),
    ],
)
def test_the_next_prompt_extends_a_typed_call_as_it_was_sampled(make_talk, name, arguments, output):
    talk = make_talk(dialect=DIALECT)
    tools = [{"type": name}]
    body = {"model": "m", "input": [USER], "tools": tools}
    first = talk.finish(talk.ask([], **body), reply_ids(calls=[(name, arguments)]))
    (item,) = json.loads(DIALECT.body([first.reply], DIALECT.split(json.dumps(body).encode())))[
        "output"
    ]
    answer = {"type": f"{name}_call_output", "call_id": item["call_id"]} | output

    second = talk.finish(talk.ask([], input=[USER, item, answer], tools=tools), reply_ids("so"))

    assert f"{name}_call" == item["type"]
    assert [None, None] == talk.forks()
    before = talk.sent[first.call] + talk.said[first.call]
    assert before == talk.sent[second.call][: len(before)]
    talk.check()
