"""Session and tree against a brute-force oracle that keeps every prompt as a full list of ids."""

import copy
import json

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule

from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.session.history import ResumePoints, plain_id
from gyre.proxy.session.prompt import associate
from gyre.proxy.session.session import Session
from gyre.testing.renderer import CLOSE, ByteRenderer, reply_ids, twice
from gyre.trajectory.selection import generator, select_trajectories
from gyre.trajectory.tree import grow
from gyre.types.call_records import CallDelivered, Classification, LogOpened
from gyre.types.ids import ExecutionId
from gyre.types.sampling import Output, SamplingParams

CHAT = OpenAIChat()
MAIN = Classification(role="main", harness="t")
TEXTS = st.sampled_from(["", "a", "ab", "aabb", "go\n", "é", "<|im_end|>"])
SYSTEMS = st.sampled_from(["one", "two"])


class Oracle(RuleBasedStateMachine):
    """Harnesses that extend, retry, edit, drop, inject and mangle, in any order.

    A thread is a list of messages as the harness sends them, each with the call that sampled it,
    if one did: what it said counts as long as the history before it is the one it was said in.
    """

    threads = Bundle("threads")
    fewest_units = 10**9

    def __init__(self):
        super().__init__()
        self.renderer = ByteRenderer()
        self.records = []
        self.full = {}
        self.said = {}
        self.aborted = set()
        self.known_tokens = {}
        """Every token that was sent or said, by those before it: a number for each beginning."""
        self.opened = LogOpened(
            format=1,
            execution=ExecutionId("x"),
            key_hash=b"",
            salt=b"s" * 16,
            model="m",
            renderer="r",
            at=0.0,
        )
        self.session = self.opened_session()

    # The world

    @rule(target=threads, system=SYSTEMS, text=TEXTS)
    def begin(self, system, text):
        pairs = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        return [(one, None) for one in pairs]

    @rule(
        target=threads,
        thread=threads,
        text=TEXTS,
        reasoning=st.sampled_from([None, "hm"]),
        calls=st.integers(0, 2),
        odd=st.booleans(),
        finish=st.sampled_from(["stop", "stop", "length", "abort"]),
        deliver=st.booleans(),
        after=TEXTS,
    )
    def reply(self, thread, text, reasoning, calls, odd, finish, deliver, after):
        payload = [("run", json.dumps({"n": n, "text": text})) for n in range(calls)]
        ids = reply_ids(text, reasoning=reasoning, calls=payload, close=finish == "stop")
        if odd and text == "aabb" and not calls and reasoning is None:
            ids = [*twice("aabb"), *([CLOSE] if finish == "stop" else [])]
        answered = self.ask(thread, ids, finish=finish, deliver=deliver and finish != "abort")
        if finish == "abort":
            return multiple()
        message = answered.message
        echo = {"role": "assistant", "content": message.text or None}
        if message.reasoning:
            echo["reasoning_content"] = message.reasoning
        if message.calls:
            echo["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.calls
            ]
        follow = [
            {"role": "tool", "tool_call_id": call.id, "content": after} for call in message.calls
        ] or [{"role": "user", "content": after}]
        self.said[answered.id] = (self.meant(thread), copy.deepcopy(echo))
        return [*thread, (echo, answered.id), *((one, None) for one in follow)]

    @rule(thread=threads, text=TEXTS)
    def retry(self, thread, text):
        self.ask(thread, reply_ids(text))
        self.ask(thread, reply_ids(text))

    @rule(thread=threads, texts=st.tuples(TEXTS, TEXTS))
    def at_once(self, thread, texts):
        pendings = [self.position(thread) for _ in texts]
        for pending, text in zip(pendings, texts, strict=True):
            self.finish(thread, pending, reply_ids(text))

    @rule(target=threads, thread=threads, where=st.integers(1, 8), text=TEXTS)
    def edit(self, thread, where, text):
        changed = list(thread)
        at = min(where, len(thread) - 1)
        if changed[at][0]["role"] in ("assistant", "tool"):
            return multiple()
        new = changed[at][0] | {"content": text + "!"}
        changed[at] = (new, None)
        return changed

    @rule(target=threads, thread=threads, keep=st.integers(2, 8))
    def forget_the_end(self, thread, keep):
        shorter = thread[:keep]
        while shorter[-1][0]["role"] == "assistant":
            shorter = shorter[:-1]
        return shorter

    @rule(target=threads, thread=threads, text=TEXTS)
    def inject(self, thread, text):
        own = {"role": "assistant", "content": "injected " + text}
        more = {"role": "user", "content": "and"}
        return [*thread, (own, None), (more, None)]

    @rule(target=threads, thread=threads)
    def mangle(self, thread):
        """Arguments as a harness might re-serialise them; the ids stay."""
        changed = copy.deepcopy(thread)
        for sent, _ in changed:
            for call in sent.get("tool_calls", ()):
                call["function"]["arguments"] = {"n": "0", "filled": None}
        return changed

    @rule()
    def reload(self):
        """The proxy dies and comes back: everything it knows is in the records."""
        self.check_all()
        self.session = self.opened_session()
        for record in self.records:
            self.session.apply(record)

    def opened_session(self):
        return Session(
            self.opened,
            self.renderer,
            sampling=SamplingParams(),
            context_tokens=10**6,
            trails=ResumePoints(fewest_units=self.fewest_units),
        )

    # What must hold

    def meant(self, thread):
        """The conversation with payloads as they were sampled, where they were sampled there."""
        found = []
        for sent, reply in thread:
            before, said = self.said.get(reply, (None, None))
            found.append(said if before == found else sent)
        return found

    def position(self, thread):
        body = json.dumps({"model": "m", "messages": [sent for sent, _ in thread]})
        return self.session.position(CHAT, CHAT.split(body.encode()), MAIN)

    def ask(self, thread, ids, **how):
        return self.finish(thread, self.position(thread), ids, **how)

    def finish(self, thread, pending, ids, *, finish="stop", deliver=True):
        self.check_text(thread, pending)
        expected = self.parents(pending.prompt.ids.tolist())
        opened = self.session.open_call(pending, 0.0)
        self.write(*pending.place.echoed, opened)
        output = Output(ids=ids, logprobs=[-1.0] * len(ids), spans=(), finish=finish)
        record, reply = self.session.close_call(pending, opened, output, 0.0)
        self.write(record)
        if deliver:
            self.write(CallDelivered(call=opened.call))
        self.full[opened.call] = (pending.prompt.ids.tolist(), ids)
        at = 0
        for token in self.ids_of(opened.call):
            at = self.known_tokens.setdefault((at, token), len(self.known_tokens) + 1)
        if finish == "abort":
            self.aborted.add(opened.call)
        node = self.session.tree.calls[opened.call]
        assert node.parent in expected
        return reply

    def check_text(self, thread, pending):
        """The prompt says exactly what the conversation says, payloads as they were sampled."""
        body = json.dumps({"model": "m", "messages": self.meant(thread)})
        wire = CHAT.split(body.encode())
        messages = [message for raw in wire.messages for message in CHAT.read(raw)]
        known = {call.id: call for message in messages for call in message.calls}
        named = [associate(message, known_plain(known)) for message in messages]
        whole = self.renderer.render(named, ()).ids
        assert self.renderer.decode(whole) == self.renderer.decode(pending.prompt.ids.tolist())
        assert whole.count(CLOSE) == pending.prompt.ids.tolist().count(CLOSE)

    def ids_of(self, call):
        return [] if call is None else self.full[call][0] + self.full[call][1]

    def parents(self, prompt):
        """Calls with the longest prompt whose prompt and output this one begins with, then closed.

        There may be twins: an empty reply that was cut and one that was closed read the same.
        """
        found = {None: -1}
        for call, (sent, said) in self.full.items():
            ids = sent + said
            if call in self.aborted or ids != prompt[: len(ids)]:
                continue
            if said[-1:] == [CLOSE] or prompt[len(ids) : len(ids) + 1] == [CLOSE]:
                found[call] = len(sent)
        deepest = max(found.values())
        return [call for call, length in found.items() if length == deepest]

    def write(self, *records):
        for record in records:
            self.records.append(record)
            self.session.apply(record)

    def teardown(self):
        """Runs of any length end here, so that what holds in the end holds all the time."""
        self.check_all()

    def check_all(self):
        self.every_prompt_and_output_is_stored_as_it_was()
        self.no_token_is_stored_twice_without_need()
        self.targets_are_sampled_once_and_only_where_received()

    def every_prompt_and_output_is_stored_as_it_was(self):
        for tree in (self.session.tree, grow(self.records)):
            assert set(self.full) == set(tree.calls)
            for call, (sent, said) in self.full.items():
                assert sent == tree.prompt_ids(call).tolist()
                assert said == tree.output_ids(call).tolist()

    def no_token_is_stored_twice_without_need(self):
        """Never more than what is new after each parent, never less than what is unique."""
        tree = self.session.tree
        outputs = sum(len(o) for _, o in self.full.values())
        increments = sum(
            len(s) - len(self.ids_of(tree.calls[call].parent)) for call, (s, _) in self.full.items()
        )
        assert tree.num_tokens <= increments + outputs
        distinct_outputs = {tuple(s + o) for s, o in self.full.values()}
        twins = outputs - sum(len(o) for o in self._last_outputs(distinct_outputs))
        assert tree.num_tokens >= len(self.known_tokens) - twins

    def _last_outputs(self, distinct):
        found = {}
        for sent, said in self.full.values():
            found[tuple(sent + said)] = said
        assert set(found) == distinct
        return found.values()

    def targets_are_sampled_once_and_only_where_received(self):
        tree = self.session.tree
        targets = [
            call
            for drawn in select_trajectories(
                tree, generator(0, ExecutionId("x")), max_trajectories=None
            )
            for call in drawn.targets
        ]
        wanted = {
            node.id
            for leaf in tree.leaves()
            for node in tree.ancestry(leaf.id)
            if node.num_committed and node.is_trainable
        }
        assert len(targets) == len(set(targets))
        assert wanted == set(targets)
        assert not self.aborted & set(targets)


def known_plain(known):
    return {plain_id(key): call for key, call in known.items()}


class OracleWithTrails(Oracle):
    """The same, with every history resumed from a trail as soon as there is one."""

    fewest_units = 0


TestOracle = Oracle.TestCase
TestOracleWithTrails = OracleWithTrails.TestCase
