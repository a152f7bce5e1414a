"""A session with a long history, grown in memory by scripted calls, without any network."""

from collections.abc import Callable

from benchmarks.peers.contestants import CACHE
from benchmarks.peers.load import Answer, Conversation, message_of
from benchmarks.peers.replies import NUM_REPLIES, said
from benchmarks.peers.tokenizer import fetch
from tokenizers import Tokenizer

from gyre.harnesses.roles import classify
from gyre.proxy.dialects.base import ParsedRequest
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.session.session import PositionedRequest, Session
from gyre.renderers.registry import load_renderer
from gyre.types.call_records import FORMAT, CallClosed, CallDelivered, CallRecord, LogOpened
from gyre.types.ids import EngineName, ExecutionId
from gyre.types.protocols import Renderer
from gyre.types.sampling import Output, SamplingParams, Span

MODEL = "policy"
CONTEXT_TOKENS = 2_000_000


def qwen3() -> Renderer:
    """The renderer of Qwen3 with its real tokenizer."""
    fetch(CACHE / "tokenizer")
    return load_renderer(str(CACHE / "tokenizer"), family="qwen3", thinking="all")


class Growing:
    """One execution whose conversation is extended by tool calls and their outputs."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        keeps_records: bool = True,
        heard: Callable[[CallRecord], object] | None = None,
    ) -> None:
        """`heard` is told every record that a log would hold."""
        opened = LogOpened(
            format=FORMAT,
            execution=ExecutionId("micro"),
            key_hash=b"",
            salt=bytes(16),
            model=MODEL,
            renderer=renderer.name,
            at=0.0,
        )
        self.session = Session(
            opened, renderer, sampling=SamplingParams(), context_tokens=CONTEXT_TOKENS
        )
        self.session.apply(opened)
        self.dialect = OpenAIChat()
        self.conversation = Conversation(tools=True, stream=False)
        self.conversation.ask()
        self.records: list[CallClosed] = []
        self.num_calls = 0
        self._keeps_records = keeps_records
        self._heard = heard
        tokenizer = Tokenizer.from_file(str(CACHE / "tokenizer" / "tokenizer.json"))
        self._outputs = [
            tokenizer.encode(said(index, tools=True).sampled, add_special_tokens=False).ids
            for index in range(NUM_REPLIES)
        ]

    def call(self, output_chars: int) -> PositionedRequest:
        """One whole call; the conversation then ends with a tool output of this length."""
        wire = self.dialect.split(self.conversation.body)
        classified = classify(self.dialect.evidence(wire, {}))
        pending = self.session.position(self.dialect, wire, classified)
        self.close(wire, pending, output_chars)
        return pending

    def close(self, wire: ParsedRequest, pending: PositionedRequest, output_chars: int) -> None:
        """The request was answered, and its reply is in the conversation."""
        opened = self.session.open_call(pending, 0.0)
        self._apply(opened)
        record, reply = self.session.close_call(pending, opened, self._output(), 0.0)
        self._apply(record)
        self._apply(CallDelivered(call=opened.call))
        self.num_calls += 1
        if self._keeps_records:
            self.records.append(record)
        body = self.dialect.body([reply], wire)
        answer = Answer(status=200, body=body, first_byte_s=0.0, total_s=0.0)
        self.conversation.go_on(message_of(answer), output_chars)

    def _apply(self, record: CallRecord) -> None:
        self.session.apply(record)
        if self._heard is not None:
            self._heard(record)

    def grow_to(self, num_bytes: int, output_chars: int) -> PositionedRequest:
        """Calls until the body has this size; the last one's place."""
        while True:
            pending = self.call(output_chars)
            if len(self.conversation.body) >= num_bytes:
                return pending

    def _output(self) -> Output:
        ids = self._outputs[self.num_calls % NUM_REPLIES]
        span = Span(engine=EngineName("micro"), version=None, tokens=len(ids))
        return Output(ids=ids, logprobs=[-0.1] * len(ids), spans=(span,), finish="stop")
