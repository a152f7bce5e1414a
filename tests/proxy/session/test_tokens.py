"""Token identity through a session: EDGE_CASES lines T01 to T31 that need no HTTP and no engine."""

import copy

import pytest

from gyre.testing.renderer import CLOSE, OPEN, reply_ids, text_ids, twice
from gyre.trajectory.selection import generator, row, select_trajectories
from gyre.types.errors import ContextOverflow, RequestError
from gyre.types.ids import CallId

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "do it"}


def result(answered, text, position=0):
    """The tool message that answers one call of a reply."""
    call = answered.reply.message.calls[position]
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def test_a_prompt_is_the_stored_path_and_the_new_messages(talk):
    """T01: prompt ids equal the path's segments plus the increment, every call."""
    first = talk.call([SYSTEM, USER], reply_ids("a", calls=[("run", '{"c": 1}')]))
    second = talk.call([SYSTEM, USER, first.echo, result(first, "r")], reply_ids("b"))

    prefix = talk.sent[first.call] + talk.said[first.call]
    assert prefix == talk.sent[second.call][: len(prefix)]
    talk.check()


def test_an_echo_that_differs_is_the_truth_and_forks(talk):
    """T01: the engine saw another prompt: its ids are stored, the fork is counted."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    pending = talk.ask([SYSTEM, USER, first.echo, USER])
    seen = pending.prompt.ids.tolist()
    seen[-20] = 65
    answered = talk.finish(pending, reply_ids("b"), echo=seen)

    node = talk.tree.calls[answered.call]
    assert node.fork == "echo-mismatch"
    assert node.flags == ("echo-mismatch",)
    assert seen == talk.tree.prompt_ids(answered.call).tolist()
    assert talk.sent[first.call] == talk.tree.prompt_ids(first.call).tolist()


def test_an_equal_echo_changes_nothing(talk):
    pending = talk.ask([SYSTEM, USER])
    answered = talk.finish(pending, reply_ids("b"), echo=pending.prompt.ids.tolist())

    assert talk.tree.calls[answered.call].flags == ()
    talk.check()


def test_a_sampled_split_stays_as_it_was_sampled(talk):
    """T02: a split no encoder would make is in the next prompt verbatim."""
    odd = [*twice("aabb"), CLOSE]
    first = talk.call([SYSTEM, USER], odd)
    second = talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert first.echo["content"] == "aabb"
    assert odd == talk.sent[second.call][len(talk.sent[first.call]) :][: len(odd)]
    assert reply_ids("aabb") != odd
    assert [None, None] == talk.forks()


def test_a_reply_cut_by_length_is_closed_by_input_tokens(talk):
    """T06: the close after a finish by length is input; sampled tokens stay targets."""
    first = talk.call([SYSTEM, USER], reply_ids("partia", close=False), finish="length")
    second = talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    after = talk.sent[second.call][len(talk.sent[first.call]) + len(talk.said[first.call]) :]
    (drawn,) = select_trajectories(talk.tree, generator(0, talk.records[0].execution))
    assert [CLOSE, *text_ids("\n"), OPEN] == after[:3]
    assert len(talk.said[first.call]) + len(talk.said[second.call]) == drawn.num_targets
    talk.check()


def test_an_aborted_reply_is_kept_but_never_matched_or_trained(talk):
    """T08: a later identical request makes a sibling of the abandoned one."""
    gone = talk.call([SYSTEM, USER], text_ids("half"), finish="abort", deliver=False)
    again = talk.call([SYSTEM, USER], reply_ids("whole"))

    assert "abort" == talk.tree.calls[gone.call].finish
    assert talk.tree.calls[gone.call].committed is None
    assert [again.call] == [leaf.id for leaf in talk.tree.leaves()]
    assert [None, "retry"] == talk.forks()
    talk.check()


def test_dropped_thinking_forks_at_that_reply(make_talk):
    """T09: a template that drops thinking on a new user turn; both paths stay exact."""
    talk = make_talk(thinking="template")
    first = talk.call([SYSTEM, USER], reply_ids("a", reasoning="hm"))
    second = talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b", reasoning="ho"))
    third = talk.call(
        [SYSTEM, USER, first.echo, USER, second.echo, USER], reply_ids("c", reasoning="hi")
    )

    assert [None, "rerendered", "rerendered"] == talk.forks()
    assert {first.call, second.call, third.call} == {leaf.id for leaf in talk.tree.leaves()}
    # The first reply stands in the third prompt as the second already had it: shared, not new.
    shared = talk.tree.path(talk.tree.calls[third.call].segment)[:4]
    assert shared == talk.tree.path(talk.tree.calls[second.call].segment)[:4]
    talk.check()


def test_kept_thinking_does_not_fork(talk):
    """T09: with thinking kept, a new user turn extends the path."""
    first = talk.call([SYSTEM, USER], reply_ids("a", reasoning="hm"))
    talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert [None, None] == talk.forks()


def test_a_client_that_never_echoes_thinking_still_extends(talk):
    """T20: absent reasoning says nothing; a different one is another message."""
    first = talk.call([SYSTEM, USER], reply_ids("a", reasoning="hm"))
    silent = {key: value for key, value in first.echo.items() if key == "role" or key == "content"}
    talk.call([SYSTEM, USER, silent, USER], reply_ids("b"))
    talk.call([SYSTEM, USER, silent | {"reasoning_content": "else"}, USER], reply_ids("c"))

    assert [None, None, "injected"] == talk.forks()
    talk.check()


def test_the_generation_prompt_stands_once_before_a_reply(talk):
    """T11: one generation prompt after (tool, tool, user)."""
    calls = [("run", "{}"), ("run", "{}")]
    first = talk.call([SYSTEM, USER], reply_ids("a", calls=calls))
    history = [SYSTEM, USER, first.echo, result(first, "1"), result(first, "2", 1), USER]
    second = talk.call(history, reply_ids("b"))

    opener = [OPEN, *text_ids("assistant\n")]
    sent = talk.sent[second.call]
    assert opener == sent[-len(opener) :]
    assert 2 == sum(sent[i : i + len(opener)] == opener for i in range(len(sent)))


ECHOES = {
    "keys reordered": '{"b": 2, "a": 1}',
    "spaces": '{"a":1,"b":2}',
    "integer as float": '{"a": 1.0, "b": 2}',
    "number as text": '{"a": "1", "b": 2}',
    "defaults filled": '{"a": 1, "b": 2, "c": false}',
    "escaped": '{"\\u0061": 1, "b": 2}',
    "as an object": {"a": 1, "b": 2},
    "emptied": "",
    "nulled": None,
    "not JSON any more": "{a:",
}


@pytest.mark.parametrize("arguments", ECHOES.values(), ids=ECHOES.keys())
def test_rewritten_arguments_are_the_same_reply(talk, arguments):
    """T12, T13: whatever an echo does to arguments, the sampled ones are in the tokens."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", '{"a": 1, "b": 2}')]))
    echo = copy.deepcopy(first.echo)
    echo["tool_calls"][0]["function"]["arguments"] = arguments
    talk.call([SYSTEM, USER, echo, result(first, "r")], reply_ids("b"))

    assert [None, None] == talk.forks()
    assert [None, first.call] == talk.parents()
    talk.check()


def test_other_arguments_under_an_unknown_id_are_another_message(talk):
    """T12: a different value with an unknown id branches; the same value matches."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", '{"a": 1}')]))
    echo = copy.deepcopy(first.echo)
    echo["tool_calls"][0]["id"] = "else"
    answer = {"role": "tool", "tool_call_id": "else", "content": "r"}
    talk.call([SYSTEM, USER, echo, answer], reply_ids("b"))
    echo["tool_calls"][0]["function"]["arguments"] = '{"a": 2}'
    talk.call([SYSTEM, USER, echo, answer], reply_ids("c"))

    assert [None, first.call, None] == talk.parents()
    assert [None, None, "injected"] == talk.forks()
    talk.check()


def test_a_renamed_tool_keeps_its_sampled_name(talk):
    """T14: same id, another name: the stored name is in the tokens."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("Task", "{}")]))
    echo = copy.deepcopy(first.echo)
    echo["tool_calls"][0]["function"]["name"] = "Agent"
    second = talk.call([SYSTEM, USER, echo, result(first, "r")], reply_ids("b"))

    text = bytes(token for token in talk.sent[second.call] if token < 256).decode()
    assert "Task" in text
    assert "Agent" not in text
    assert [None, None] == talk.forks()


def test_rewritten_ids_still_associate_results(talk):
    """T15: ids stripped of their punctuation in call and result; the tool is still known."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("read", "{}"), ("write", "{}")]))
    echo = copy.deepcopy(first.echo)
    for call in echo["tool_calls"]:
        call["id"] = call["id"].replace("_", "")
    ids = [call["id"] for call in echo["tool_calls"]]
    results = [{"role": "tool", "tool_call_id": one, "content": "r"} for one in ids]
    second = talk.call([SYSTEM, USER, echo, *results], reply_ids("b"))

    text = bytes(token for token in talk.sent[second.call] if token < 256).decode()
    assert "tool read\n" in text
    assert "tool write\n" in text
    assert [None, first.call] == talk.parents()


def test_an_id_seen_elsewhere_brings_no_foreign_payload(talk):
    """T16: the same id on another path is another call: restoration is by place, not by id."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", '{"secret": 1}')]))
    other = {"role": "user", "content": "elsewhere"}
    echo = copy.deepcopy(first.echo)
    echo["tool_calls"][0]["function"]["arguments"] = '{"mine": 2}'
    second = talk.call([SYSTEM, other, echo, result(first, "r")], reply_ids("b"))

    text = bytes(token for token in talk.sent[second.call] if token < 256).decode()
    assert "mine" in text
    assert "secret" not in text
    talk.check()


def test_parallel_results_keep_the_order_they_came_in(talk):
    """T17: four calls, answered out of order, two refused, one missing: no payload swaps."""
    calls = [(name, f'{{"n": "{name}"}}') for name in ("a", "b", "c", "d")]
    first = talk.call([SYSTEM, USER], reply_ids("", calls=calls))
    results = [result(first, "limit", 3), result(first, "limit", 1), result(first, "fine", 0)]
    second = talk.call([SYSTEM, USER, first.echo, *results], reply_ids("b"))

    text = bytes(token for token in talk.sent[second.call] if token < 256).decode()
    order = [text.index(f"tool {name}\n") for name in ("d", "b", "a")]
    assert sorted(order) == order
    assert "tool c\n" not in text
    assert [None, first.call] == talk.parents()


@pytest.mark.parametrize(
    "arguments",
    ['{"a":1,"a":2}', "NaN", '{"a": 1e400}', "[" * 5000 + "]" * 5000, "{a:", "1" + "0" * 400],
    ids=["duplicate keys", "NaN", "overflow", "deep", "broken", "huge"],
)
def test_odd_arguments_match_themselves_and_nothing_else(talk, arguments):
    """T18: never raises, never equates."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", arguments)]))
    echo = copy.deepcopy(first.echo)
    echo["tool_calls"][0]["id"] = "unknown"
    answer = {"role": "tool", "tool_call_id": "unknown", "content": "r"}
    talk.call([SYSTEM, USER, echo, answer], reply_ids("b"))
    echo["tool_calls"][0]["function"]["arguments"] = '{"a": 2}'
    talk.call([SYSTEM, USER, echo, answer], reply_ids("c"))

    assert [None, first.call, None] == talk.parents()


@pytest.mark.parametrize("content", [None, "", [], "absent"])
def test_no_content_is_no_content(talk, content):
    """T20: None, "", [] and a missing field are one; extra keys are ignored."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", "{}")]))
    echo = first.echo | {"content": content, "provider_specific_fields": {}, "index": 0}
    if content == "absent":
        del echo["content"]
    talk.call([SYSTEM, USER, echo, result(first, "r")], reply_ids("b"))

    assert [None, None] == talk.forks()


def test_white_space_is_a_difference(talk):
    """T20: an echo with other white space is another message."""
    first = talk.call([SYSTEM, USER], reply_ids("text"))
    talk.call([SYSTEM, USER, first.echo | {"content": "text "}, USER], reply_ids("b"))

    assert [None, "injected"] == talk.forks()


def test_blank_text_beside_a_call_is_not_sent_and_matches_its_absence(talk):
    """T22: what was returned is what is matched, not the raw decode."""
    first = talk.call([SYSTEM, USER], reply_ids("\n\n", calls=[("run", "{}")]))
    talk.call([SYSTEM, USER, first.echo, result(first, "r")], reply_ids("b"))

    assert first.echo["content"] is None
    assert [None, None] == talk.forks()


def test_an_empty_reply_is_a_node_without_targets(talk):
    """T26: and its retry stands beside it, not below."""
    empty = talk.call([SYSTEM, USER], [CLOSE])
    nothing = talk.call([SYSTEM, USER], [])
    retry = talk.call([SYSTEM, USER], reply_ids("a"))

    assert [None, None, None] == talk.parents()
    assert 0 == talk.tree.calls[nothing.call].num_committed
    assert {empty.call, nothing.call, retry.call} == {leaf.id for leaf in talk.tree.leaves()}
    talk.check()


@pytest.mark.parametrize("logprobs", [None, [-0.5], [-0.5, float("nan"), -0.5]])
def test_missing_log_probabilities_make_the_output_untrainable(talk, logprobs):
    """T27: absent, of another length, or not finite: flagged, never zero-filled."""
    answered = talk.call([SYSTEM, USER], reply_ids("ab"), logprobs=logprobs)

    assert ("no-logprobs",) == talk.tree.calls[answered.call].flags
    assert [] == select_trajectories(talk.tree, generator(0, talk.records[0].execution))


def test_the_settings_of_the_run_are_used_and_the_asked_ones_recorded(talk):
    """T28: a harness's own temperature is kept on record and not used."""
    pending = talk.ask([SYSTEM, USER], temperature=0.0, top_p=0.5, max_tokens=77)

    assert (1.0, 1.0, 77) == (
        pending.sampling.temperature,
        pending.sampling.top_p,
        pending.sampling.max_tokens,
    )
    assert 0.0 == pending.asked["temperature"]


def test_several_choices_are_siblings_with_their_own_tokens(talk):
    """T29: one positioning, n outputs under one parent, inputs stored once."""
    pending = talk.ask([SYSTEM, USER], n=3)
    before = len(talk.tree.segments)
    answers = [talk.finish(pending, reply_ids(text)) for text in ("a", "b", "c")]

    assert [None, None, None] == talk.parents()
    assert {"a", "b", "c"} == {one.reply.message.text for one in answers}
    assert before + 2 + 3 == len(talk.tree.segments)
    talk.check()


def test_a_stop_string_shortens_the_text_and_not_the_record(talk):
    """T31: ids and log-probabilities stay whole; the echo of the short text matches."""
    first = talk.call([SYSTEM, USER], reply_ids("keep STOP drop"), stop=["STOP"])
    talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert "keep " == first.reply.message.text
    assert [None, None] == talk.forks()
    talk.check()


def test_a_prompt_that_fills_the_window_is_refused_and_leaves_no_trace(make_talk):
    """M16: the words harnesses know; nothing recorded; a shorter request is accepted."""
    talk = make_talk(context_tokens=60)
    with pytest.raises(ContextOverflow, match=r"prompt is too long: 2.. tokens > 60 maximum"):
        talk.ask([SYSTEM, {"role": "user", "content": "x" * 200}])

    assert {} == talk.tree.calls
    assert talk.call([{"role": "user", "content": "x"}], reply_ids("a")).call == CallId(1)


def test_the_reply_never_outgrows_the_window(make_talk):
    talk = make_talk(context_tokens=100)
    pending = talk.ask([SYSTEM, USER])

    assert 100 - pending.prompt_tokens == pending.sampling.max_tokens


def test_a_conversation_that_ends_on_a_tool_call_is_refused(talk):
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    with pytest.raises(RequestError, match=r"messages\[1\]: a conversation cannot end"):
        talk.ask([USER, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_rows_carry_versions_and_log_probabilities_of_targets_only(talk):
    first = talk.call([SYSTEM, USER], reply_ids("abc"))
    (drawn,) = select_trajectories(talk.tree, generator(0, talk.records[0].execution))
    made = row(talk.tree, drawn)

    assert talk.sent[first.call] + talk.said[first.call] == made.ids.tolist()
    assert talk.said[first.call] == made.ids[made.targets].tolist()
    assert [-0.25] * 4 == made.logprobs.tolist()
    assert made.versions is not None
    assert [7] * 4 == made.versions.tolist()
