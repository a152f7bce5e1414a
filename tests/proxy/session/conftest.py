"""A conversation driven straight through a session, without HTTP."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gyre.proxy.dialects.base import Dialect
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.session.session import PositionedRequest, Session
from gyre.storage.call_log import frame
from gyre.testing.renderer import ByteRenderer
from gyre.trajectory.tree import Tree, grow
from gyre.types.call_records import CallDelivered, CallRecord, CallRole, Classification, LogOpened
from gyre.types.conversation import Reply
from gyre.types.ids import CallId, EngineName, ExecutionId
from gyre.types.sampling import Output, SamplingParams, Span

OPENED = LogOpened(
    format=1,
    execution=ExecutionId("x"),
    key_hash=b"k" * 32,
    salt=b"s" * 16,
    model="policy",
    renderer="bytes",
    at=0.0,
)
_ANY_WIRE = OpenAIChat().split(b'{"model":"m","messages":[]}')


@dataclass
class Answered:
    """One finished call of a Talk."""

    call: CallId
    pending: PositionedRequest
    reply: Reply

    @property
    def echo(self) -> dict[str, Any]:
        """The assistant message as a faithful chat client sends it back."""
        body = msgspec.json.decode(OpenAIChat().body([self.reply], _ANY_WIRE))
        return dict(body["choices"][0]["message"])


@dataclass
class Talk:
    """A session, the records it made, and what its engine was sent."""

    session: Session
    dialect: Dialect = field(default_factory=OpenAIChat)
    records: list[CallRecord] = field(default_factory=lambda: [OPENED])
    sent: dict[CallId, list[int]] = field(default_factory=dict)
    said: dict[CallId, list[int]] = field(default_factory=dict)

    def write(self, *records: CallRecord) -> None:
        for record in records:
            self.records.append(record)
            self.session.apply(record)

    def ask(
        self,
        messages: list[dict[str, Any]],
        *,
        role: CallRole = "main",
        agent: str | None = None,
        **fields: Any,
    ) -> PositionedRequest:
        body = msgspec.json.encode({"model": "any", "messages": messages, **fields})
        classified = Classification(role=role, harness="test", agent=agent)
        return self.session.position(self.dialect, self.dialect.split(body), classified)

    def finish(
        self, pending: PositionedRequest, ids: list[int], *, deliver: bool = True, **output: Any
    ) -> Answered:
        opened = self.session.open_call(pending, 1.0)
        self.write(*pending.place.echoed, opened)
        settings: dict[str, Any] = {
            "logprobs": [-0.25] * len(ids),
            "spans": (Span(engine=EngineName("e"), version=7, tokens=len(ids)),),
            "finish": "stop",
        }
        whole = Output(ids=ids, **(settings | output))
        record, reply = self.session.close_call(pending, opened, whole, 2.0)
        self.write(record)
        if deliver:
            self.write(CallDelivered(call=opened.call))
        self.sent[opened.call] = pending.prompt.ids.tolist()
        self.said[opened.call] = ids
        return Answered(opened.call, pending, reply)

    def call(self, messages: list[dict[str, Any]], ids: list[int], **options: Any) -> Answered:
        names = ("role", "agent", "tools", "chat_template_kwargs", "max_tokens", "stop")
        asked = {name: options.pop(name) for name in names if name in options}
        return self.finish(self.ask(messages, **asked), ids, **options)

    def call_messages(self, messages: list[Any], ids: list[int], **fields: Any) -> Answered:
        """A call in the Anthropic dialect, where the system prompt is a field."""
        return self.finish(self.ask(messages, max_tokens=500, **fields), ids)

    @property
    def tree(self) -> Tree:
        return self.session.tree

    def check(self) -> None:
        """Stored prompts and outputs are what the engine was sent and said, live and reloaded."""
        for tree in (self.tree, grow(self.records)):
            for call, ids in self.sent.items():
                assert ids == tree.prompt_ids(call).tolist()
                assert self.said[call] == tree.output_ids(call).tolist()
        for record in self.records:
            assert frame(record)

    def forks(self) -> list[str | None]:
        return [node.fork for node in self.tree.calls.values()]

    def parents(self) -> list[int | None]:
        return [node.parent for node in self.tree.calls.values()]


@pytest.fixture
def make_talk() -> Callable[..., Talk]:
    def make(*, context_tokens: int = 100_000, dialect: Dialect | None = None, **how: Any) -> Talk:
        session = Session(
            OPENED,
            ByteRenderer(**how),
            sampling=SamplingParams(max_tokens=1000),
            context_tokens=context_tokens,
        )
        session.apply(OPENED)
        talk = Talk(session)
        if dialect is not None:
            talk.dialect = dialect
        return talk

    return make


@pytest.fixture
def talk(make_talk: Callable[..., Talk]) -> Talk:
    return make_talk()
