"""Matching and the shape of the tree: EDGE_CASES lines M01 to M25 that need no HTTP."""

import itertools

import pytest

from gyre.proxy.dialects.anthropic import AnthropicMessages
from gyre.testing.renderer import CLOSE, reply_ids
from gyre.trajectory.tree import grow
from gyre.types.errors import RequestError

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "do it"}
TOOL = {
    "type": "function",
    "function": {"name": "run", "description": "", "parameters": {"type": "object"}},
}


def user(text):
    return {"role": "user", "content": text}


def result(answered, text, position=0):
    call = answered.reply.message.calls[position]
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def shape(tree):
    """A tree as nested facts, free of numbers that depend on the order of arrival."""

    def below(call):
        return frozenset(
            (
                tree.prompt_ids(node.id).tobytes(),
                tree.output_ids(node.id).tobytes(),
                node.role,
                below(node.id),
            )
            for node in tree.children(call)
        )

    return below(None)


def test_other_tools_share_nothing(talk):
    """M01: a different tool list is a different root."""
    first = talk.call([SYSTEM, USER], reply_ids("a"), tools=[TOOL])
    talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert [None, None] == talk.parents()
    assert 2 == len(talk.tree.roots())
    talk.check()


def test_other_template_settings_share_nothing(talk):
    """M02: chat_template_kwargs are part of what must match."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    talk.call(
        [SYSTEM, USER, first.echo, USER],
        reply_ids("b"),
        chat_template_kwargs={"enable_thinking": False},
    )

    assert [None, None] == talk.parents()
    assert 2 == len(talk.tree.roots())


def test_a_volatile_billing_block_is_no_part_of_the_prompt(make_talk):
    """M03: two requests that differ in system[0] only share the whole prefix."""
    talk = make_talk(dialect=AnthropicMessages())

    def system(nonce):
        billing = f"x-anthropic-billing-header: cc_version=2.1.220.{nonce}; cc_entrypoint=sdk-cli;"
        return [{"type": "text", "text": billing}, {"type": "text", "text": "be brief"}]

    first = talk.call_messages([USER], reply_ids("a"), system=system("a1b"))
    reply = {"role": "assistant", "content": [{"type": "text", "text": "a"}]}
    talk.call_messages([USER, reply, USER], reply_ids("b"), system=system("c3d"))

    assert [None, first.call] == talk.parents()
    assert [None, None] == talk.forks()


def test_moving_cache_control_and_block_form_do_not_change_the_match(make_talk):
    """T21: markers move between turns and flip string and block form."""
    talk = make_talk(dialect=AnthropicMessages())
    marked = [{"type": "text", "text": "do it", "cache_control": {"type": "ephemeral"}}]
    talk.call_messages([{"role": "user", "content": marked}], reply_ids("a"))
    reply = {"role": "assistant", "content": "a"}
    talk.call_messages([USER, reply, user("more")], reply_ids("b"))

    assert [None, None] == talk.forks()


def test_a_reminder_inserted_in_the_past_branches_there(talk):
    """M04: the old leaf stays, nothing is relabelled."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    second = talk.call([SYSTEM, USER, first.echo, user("go on")], reply_ids("b"))
    reminder = user("<system-reminder>mind</system-reminder>")
    history = [SYSTEM, USER, reminder, first.echo, user("go on"), second.echo, user("x")]
    third = talk.call(history, reply_ids("c"))

    assert [None, first.call, None] == talk.parents()
    assert {second.call, third.call} == {leaf.id for leaf in talk.tree.leaves()}
    assert "injected" == talk.tree.calls[third.call].fork
    talk.check()


def test_a_sliding_window_diverges_once_per_request_and_ever_deeper(talk):
    """M05: old tool outputs become stubs as the window slides."""
    history = [SYSTEM, USER]
    depths = []
    for turn in range(5):
        answered = talk.call(history, reply_ids("", calls=[("run", f'{{"n": {turn}}}')]))
        depths.append(talk.tree.segments[answered.pending.prompt.anchor].depth)
        history = [*history, answered.echo, result(answered, f"long output {turn}")]
        tools = [index for index, one in enumerate(history) if one["role"] == "tool"]
        for index in tools[:-2]:
            history[index] = history[index] | {"content": "[elided]"}

    assert [None, None, None, "injected", "injected"] == talk.forks()
    assert sorted(depths[3:]) == depths[3:]
    assert depths[3] < depths[4]
    talk.check()


def test_compaction_leaves_a_summary_leaf_and_a_new_path_under_the_system_prompt(talk):
    """M06: the summary put back as text is input, though byte-equal to sampled tokens."""
    first = talk.call([SYSTEM, USER], reply_ids("", calls=[("run", "{}")]))
    history = [SYSTEM, USER, first.echo, result(first, "r")]
    second = talk.call(history, reply_ids("b"))
    asked = [*history, user("CRITICAL: summarise")]
    summary = talk.call(asked, reply_ids("all went well"), role="main-summary")
    after = talk.call([SYSTEM, user("Summary: all went well")], reply_ids("c"))

    assert [None, first.call, first.call, None] == talk.parents()
    assert [None, None, "reply-dropped", "new-conversation"] == talk.forks()
    assert [("main", second.call), ("main-summary", summary.call), ("main", after.call)] == [
        (leaf.role, leaf.id) for leaf in talk.tree.leaves()
    ]
    assert 1 == len(talk.tree.roots())
    talk.check()


def test_interleaved_agents_keep_their_own_chains(talk):
    """M07: main and two sub-agents, strictly alternating."""
    others = [SYSTEM, {"role": "system", "content": "sub"}]
    histories = [[others[0], USER], [others[1], user("one")], [others[1], user("two")]]
    last = [None, None, None]
    for turn in range(4):
        for agent, history in enumerate(histories):
            answered = talk.call(history, reply_ids(f"{agent}{turn}"), agent=str(agent))
            assert last[agent] == talk.tree.calls[answered.call].parent
            last[agent] = answered.call
            history += [answered.echo, user("next")]

    assert 3 == len(talk.tree.leaves())
    assert ["new-root", "new-conversation"] == [fork for fork in talk.forks() if fork]
    talk.check()


def test_a_retry_is_a_sibling_and_the_next_turn_follows_its_text(talk):
    """M08: same request twice; the later turn attaches to the reply it repeats."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    second = talk.call([SYSTEM, USER], reply_ids("b"))
    third = talk.call([SYSTEM, USER, first.echo, USER], reply_ids("c"))

    assert [None, None, first.call] == talk.parents()
    assert not talk.tree.calls[third.call].ambiguous
    assert {second.call, third.call} == {leaf.id for leaf in talk.tree.leaves()}


def test_equal_twins_go_to_the_delivered_one_and_say_so(talk):
    """M08: twins with equal text: delivered before undelivered, then the newest; flagged."""
    talk.call([SYSTEM, USER], reply_ids("a"), deliver=False)
    delivered = talk.call([SYSTEM, USER], reply_ids("a"))
    talk.call([SYSTEM, USER], reply_ids("a"), deliver=False)
    third = talk.call([SYSTEM, USER, delivered.echo, USER], reply_ids("c"))

    assert delivered.call == talk.tree.calls[third.call].parent
    assert talk.tree.calls[third.call].ambiguous
    assert 2 == sum(node.committed is not None for node in talk.tree.calls.values())


def test_a_resent_path_continues_its_reply_with_an_empty_increment(talk):
    """M09: the whole path again, reply included: a child without new input."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    second = talk.call([SYSTEM, USER, first.echo], reply_ids("nd more"))

    sampled = talk.tree.segments[talk.tree.calls[second.call].segment]
    assert first.call == talk.tree.calls[second.call].parent
    assert talk.tree.calls[first.call].segment == sampled.parent
    assert talk.sent[first.call] + talk.said[first.call][:-1] == talk.sent[second.call]
    assert CLOSE == talk.said[first.call][-1]
    talk.check()


def test_a_resent_beginning_is_a_sibling_not_a_child(talk):
    """M09: a strict prefix of the first request stands at the root."""
    talk.call([SYSTEM, USER, user("and")], reply_ids("a"))
    talk.call([SYSTEM, USER], reply_ids("b"))

    assert [None, None] == talk.parents()
    assert [None, "prefix"] == talk.forks()
    talk.check()


def test_divergence_inside_an_increment_shares_its_leading_messages(talk):
    """M10: three new messages, the last one differs: two are shared."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    history = [SYSTEM, USER, first.echo, user("1"), user("2"), user("3")]
    second = talk.call(history, reply_ids("b"))
    third = talk.call([*history[:-1], user("other")], reply_ids("c"))

    paths = [talk.tree.path(talk.tree.calls[one.call].segment) for one in (second, third)]
    shared = sum(left == right for left, right in zip(*paths, strict=True))
    assert 5 == shared
    assert [None, first.call, first.call] == talk.parents()
    assert [None, None, "edited"] == talk.forks()


def test_assistant_text_of_the_client_is_input(talk):
    """M11: few-shot turns are context, never checkpoints, never targets."""
    shot = {"role": "assistant", "content": "example"}
    answered = talk.call([SYSTEM, USER, shot, USER], reply_ids("a"))
    node = talk.tree.calls[answered.call]

    assert node.parent is None
    assert [None] == [
        talk.tree.segments[one].call
        for one in talk.tree.path(node.segment)
        if talk.tree.segments[one].label == "assistant" and one != node.segment
    ]


def test_a_truncated_reply_in_history_branches(talk):
    """M12: a delivered reply that comes back shorter is another message; the original stays."""
    first = talk.call([SYSTEM, USER], reply_ids("a long answer"))
    short = first.echo | {"content": "a long"}
    second = talk.call([SYSTEM, USER, short, USER], reply_ids("b"))

    assert [None, None] == talk.parents()
    assert {first.call, second.call} == {leaf.id for leaf in talk.tree.leaves()}


def test_a_prefill_is_input_and_the_rest_is_sampled(talk):
    """M13: no close, no second generation prompt; the joined text matches later."""
    given = {"role": "assistant", "content": "The answer"}
    first = talk.call([SYSTEM, USER, given], reply_ids(" is 4"))
    joined = {"role": "assistant", "content": "The answer is 4"}
    second = talk.call([SYSTEM, USER, joined, USER], reply_ids("b"))

    assert list(b"assistant\nThe answer") == talk.sent[first.call][-20:]
    assert " is 4" == first.reply.message.text
    assert first.call == talk.tree.calls[second.call].parent
    talk.check()


def test_a_system_message_in_the_middle_is_a_message(talk):
    """M14: it is encoded where it stands; runs of tool results are one unit."""
    calls = [("run", "{}"), ("run", "{}")]
    first = talk.call([SYSTEM, USER], reply_ids("", calls=calls))
    middle = {"role": "system", "content": "be careful"}
    results = [result(first, "1"), result(first, "2", 1)]
    talk.call([SYSTEM, USER, first.echo, *results, middle], reply_ids("b"))

    labels = [segment.label for segment in talk.tree.segments]
    assert ["system", "user", "assistant", "tool", "system", "assistant"] == labels[1:]
    assert [None, None] == talk.forks()


def test_concurrent_requests_from_one_parent_both_commit(talk):
    """M15: both positioned before either ends; siblings that share their new messages."""
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    history = [SYSTEM, USER, first.echo, user("go")]
    pendings = [talk.ask(history), talk.ask(history)]
    for pending, text in zip(pendings, ("b", "c"), strict=True):
        talk.finish(pending, reply_ids(text))

    assert [None, first.call, first.call] == talk.parents()
    parents = {
        talk.tree.segments[node.segment].parent for node in list(talk.tree.calls.values())[1:]
    }
    assert 1 == len(parents)
    talk.check()


def test_a_request_that_fails_to_render_records_nothing(talk):
    """M16: the next, different first request is accepted."""
    before = len(talk.records)
    with pytest.raises(RequestError, match=r"messages\[1\]"):
        talk.ask([SYSTEM, {"role": "user", "content": 7}])
    talk.call([SYSTEM, USER], reply_ids("a"))

    assert before + 3 == len(talk.records)
    assert [None] == talk.forks()


def test_auxiliary_calls_are_recorded_and_never_trained(talk):
    """M17: a title request that comes first is not taken for main."""
    talk.call([user("make a title")], reply_ids("Title"), role="aux")
    main = talk.call([SYSTEM, USER], reply_ids("a"))

    assert [main.call] == [leaf.id for leaf in talk.tree.leaves()]


@pytest.mark.slow
def test_a_chain_of_twelve_hundred_turns(talk):
    """M18: no recursion; order is the order of records, whatever the clock says."""
    history = [SYSTEM, USER]
    for _ in range(1200):
        answered = talk.call(history, reply_ids("a"))
        history += [answered.echo, user("b")]

    assert [None, *range(1, 1200)] == talk.parents()
    assert 1200 == len(talk.tree.ancestry(answered.call))
    assert {None} == set(talk.forks())
    assert talk.tree.num_tokens == len(talk.sent[answered.call]) + len(talk.said[answered.call])


def test_a_reloaded_tree_matches_the_same_way(talk, make_talk):
    """M19: records alone make the same tree, and the next request finds the same place.

    Digests are 128 bits under a secret salt; every segment after the last sampled one is
    confirmed by its tokens as well (Tree.same).
    """
    first = talk.call([SYSTEM, USER], reply_ids("a", calls=[("run", "{}")]))
    second = talk.call([SYSTEM, USER, first.echo, result(first, "r")], reply_ids("b"))
    again = make_talk()
    for record in talk.records:
        again.session.apply(record)
    history = [SYSTEM, USER, first.echo, result(first, "r"), second.echo, user("next")]

    here, there = talk.ask(history), again.ask(history)
    assert shape(talk.tree) == shape(again.tree) == shape(grow(talk.records))
    assert here.prompt.ids.tolist() == there.prompt.ids.tolist()
    assert here.prompt.anchor == there.prompt.anchor


def test_executions_do_not_see_each_other(make_talk):
    """M20: an equal conversation in another execution starts from nothing."""
    one, other = make_talk(), make_talk()
    first = one.call([SYSTEM, USER], reply_ids("a"))
    other.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert [None] == other.parents()
    assert 1 == len(one.tree.calls)


def test_an_open_call_makes_the_record_incomplete(talk):
    """M21: an intent without an end is seen after a reload too."""
    pending = talk.ask([SYSTEM, USER])
    talk.write(talk.session.open_call(pending, 1.0))

    assert not talk.tree.is_complete
    assert not grow(talk.records).is_complete


def test_the_order_of_independent_calls_does_not_matter(make_talk):
    """M22: any interleaving of three agents' chains gives the same tree."""
    chains = {
        "main": ([SYSTEM, USER], ["a1", "a2"]),
        "one": ([{"role": "system", "content": "sub"}, user("one")], ["b1", "b2"]),
        "two": ([{"role": "system", "content": "sub"}, user("two")], ["c1"]),
    }
    shapes = set()
    for order in set(itertools.permutations(["main", "main", "one", "one", "two"])):
        talk = make_talk()
        histories = {name: list(start) for name, (start, _) in chains.items()}
        turns = dict.fromkeys(chains, 0)
        for name in order:
            text = chains[name][1][turns[name]]
            turns[name] += 1
            answered = talk.call(histories[name], reply_ids(text))
            histories[name] += [answered.echo, user("next")]
        shapes.add(shape(talk.tree))

    assert 1 == len(shapes)


def test_a_dropped_empty_turn_shares_every_earlier_message(talk):
    """M23: a user message stands where the assistant was; the generation prompt is no obstacle."""
    first = talk.call([SYSTEM, USER], [], finish="length")
    second = talk.call([SYSTEM, USER, user("you said nothing")], reply_ids("b"))

    paths = [talk.tree.path(talk.tree.calls[one.call].segment) for one in (first, second)]
    assert paths[0][:2] == paths[1][:2]
    assert [None, "reply-dropped"] == talk.forks()
    assert [None, None] == talk.parents()


def test_what_came_before_a_refusal_stays_trainable(make_talk):
    """M24: an exhausted context is an ordinary end; the record up to it is whole."""
    talk = make_talk(context_tokens=120)
    first = talk.call([SYSTEM, USER], reply_ids("a"))
    with pytest.raises(Exception, match="prompt is too long"):
        talk.ask([SYSTEM, USER, first.echo, user("x" * 200)])

    assert talk.tree.is_complete
    assert [first.call] == [leaf.id for leaf in talk.tree.leaves()]


@pytest.mark.parametrize(("asked", "probe"), [(0, True), (1, True), (2, False), (None, False)])
def test_a_request_for_one_token_is_a_probe(talk, asked, probe):
    """M25: probes are answered and make no node."""
    fields = {} if asked is None else {"max_tokens": asked}

    assert probe == talk.ask([SYSTEM, USER], **fields).is_probe
    assert {} == talk.tree.calls


def test_a_history_that_holds_a_reply_commits_it(talk):
    """An undelivered reply that comes back was received after all (SPEC 4.5)."""
    first = talk.call([SYSTEM, USER], reply_ids("a"), deliver=False)
    assert talk.tree.calls[first.call].committed is None
    second = talk.call([SYSTEM, USER, first.echo, USER], reply_ids("b"))

    assert talk.tree.calls[first.call].committed is not None
    assert first.call == talk.tree.calls[second.call].parent
    assert [None, None] == talk.forks()


def test_a_history_that_holds_a_prefix_of_the_text_commits_that_prefix(talk):
    """A cut stream whose text survived: only those tokens are targets (SPEC 4.5)."""
    first = talk.call([SYSTEM, USER], reply_ids("hello world"), deliver=False)
    short = {"role": "assistant", "content": "hello"}
    second = talk.call([SYSTEM, USER, short, USER], reply_ids("b"))
    talk.call([SYSTEM, USER, short, USER, second.echo, USER], reply_ids("c"))

    assert 5 == talk.tree.calls[first.call].num_committed
    assert [None, first.call, second.call] == talk.parents()
    assert (
        talk.sent[first.call] + list(b"hello") + [CLOSE]
        == talk.sent[second.call][: len(talk.sent[first.call]) + 6]
    )
    assert [None, None, None] == talk.forks()
    talk.check()


def test_a_history_that_holds_the_first_calls_commits_them(talk):
    """A stream cut after a finished tool call: that call ran, the rest never arrived."""
    calls = [("read", '{"n": 1}'), ("read", '{"n": 2}')]
    first = talk.call([SYSTEM, USER], reply_ids("x", calls=calls), deliver=False)
    echo = first.echo | {"tool_calls": first.echo["tool_calls"][:1]}
    second = talk.call([SYSTEM, USER, echo, result(first, "r")], reply_ids("b"))

    kept = talk.tree.calls[first.call].num_committed
    assert reply_ids("x", calls=calls[:1], close=False) == talk.said[first.call][:kept]
    assert first.call == talk.tree.calls[second.call].parent
    talk.check()
