"""How many calls a client leaves to a reply, and what becomes of those beyond."""

import pytest

from gyre.testing.renderer import reply_ids

USER = [{"role": "user", "content": "do it"}]
TOOLS = [{"type": "function", "function": {"name": "ls"}}]


def test_a_choice_of_no_tool_shows_the_model_none(make_talk):
    talk = make_talk()
    shown = talk.ask(USER, tools=TOOLS)
    hidden = talk.ask(USER, tools=TOOLS, tool_choice="none")

    assert talk.ask(USER).prompt.ids.tolist() == hidden.prompt.ids.tolist()
    assert len(hidden.prompt.ids) < len(shown.prompt.ids)


@pytest.mark.parametrize(
    ("limit", "num_calls", "flags"),
    [
        ({"tool_choice": "none"}, 1, ("too-many-calls",)),
        ({"tool_choice": "none"}, 0, ()),
        ({"parallel_tool_calls": False}, 2, ("too-many-calls",)),
        ({"parallel_tool_calls": False}, 1, ()),
        ({"parallel_tool_calls": True}, 2, ()),
    ],
)
def test_more_calls_than_the_client_allows_are_flagged(make_talk, limit, num_calls, flags):
    talk = make_talk()
    asked = talk.ask(USER, tools=TOOLS, **limit)

    made = talk.finish(asked, reply_ids("x", calls=[("ls", "{}")] * num_calls))

    assert flags == talk.tree.calls[made.call].flags
    assert num_calls == len(made.reply.message.calls)
