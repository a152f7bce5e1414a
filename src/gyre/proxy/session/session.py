"""The state machine of one execution's calls: requests to prompts, outputs to replies; no I/O.

Rule 1: `position` changes nothing; what happened is a record, and `apply` is the only way in.
Rule 2: a call's parent is the one captured when it was positioned, however long it ran (M15).
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from gyre.proxy.dialects.base import Dialect, ParsedRequest
from gyre.proxy.session.history import (
    HistoryFingerprint,
    HistoryReader,
    MessageDigests,
    Preface,
    RequestHistory,
    ResumePoint,
    ResumePoints,
)
from gyre.proxy.session.matching import TAIL_TOKENS, PrefixMatch, match_prefix
from gyre.proxy.session.prompt import Prompt, check_context_early, compose, extend, prefilled
from gyre.trajectory.tree import Tree
from gyre.types.call_records import (
    CallClosed,
    CallOpened,
    CallRecord,
    Classification,
    LogOpened,
    NewSegment,
)
from gyre.types.conversation import Finish, Message, Reply, ToolCall, Usage
from gyre.types.errors import ContextOverflow, RequestError
from gyre.types.ids import ROOT, CallId, SegmentId
from gyre.types.protocols import ParsedReply, Renderer
from gyre.types.sampling import Output, SamplingParams

PROBE_TOKENS = 1
"""A request for no more than this is a probe: answered, and no node (M25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionedRequest:
    """A request that has its place in the tree and waits for its output."""

    prompt: Prompt
    preface: Preface
    prefill: str
    """The beginning of the reply that the client gave."""
    place: PrefixMatch
    dialect: str
    num_messages: int
    model: str
    sampling: SamplingParams
    asked: Mapping[str, str | int | float | bool | None]
    metadata: Mapping[str, str]
    classified: Classification
    is_probe: bool
    cached_tokens: int
    mark: HistoryFingerprint

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.ids)


class Session:
    """The tree of an execution and the rules by which calls enter it."""

    def __init__(
        self,
        opened: LogOpened,
        renderer: Renderer,
        *,
        sampling: SamplingParams,
        context_tokens: int,
        honour_sampling: bool = False,
        trails: ResumePoints | None = None,
    ) -> None:
        self.tree = Tree()
        self.subagents: set[str] = set()
        """Agents that earlier calls were classed with; some harnesses name them only once."""
        self._renderer = renderer
        self._sampling = sampling
        self._context_tokens = context_tokens
        self._honour_sampling = honour_sampling
        self._keys = MessageDigests(opened.salt)
        self._history = HistoryReader(
            self._keys,
            scope=(opened.model, opened.renderer),
            seed=int.from_bytes(opened.salt[:8], "little"),
            trails=ResumePoints() if trails is None else trails,
        )
        self._next = 1
        self._pending: dict[CallId, PositionedRequest] = {}

    def apply(self, record: CallRecord) -> None:
        """Adds one more record, live or read back from the log."""
        self.tree.apply(record)
        if isinstance(record, CallClosed):
            self._keep_trail(record)
            if record.agent is not None and record.role.startswith("sub-agent"):
                self.subagents.add(record.agent)
        self._next = max(self._next, self.tree.last_call + 1)

    # Asking

    def position(
        self,
        dialect: Dialect,
        wire: ParsedRequest,
        classified: Classification,
        headers: Mapping[str, str] | None = None,
    ) -> PositionedRequest:
        """Restore, match, and encode only what is new; raises RequestError.

        `headers` are those that identify the caller; they become part of the call's metadata.
        """
        history, place, prompt, prefill = self._prompt(dialect, wire)
        room = self._context_tokens - len(prompt.ids)
        if room < 1:
            raise ContextOverflow(prompt_tokens=len(prompt.ids), max_tokens=self._context_tokens)
        most = min(self._sampling.max_tokens, room)
        return PositionedRequest(
            prompt=prompt,
            preface=history.preface,
            prefill=prefill,
            place=place,
            dialect=dialect.name,
            num_messages=len(wire.messages),
            model=wire.model,
            sampling=self._enforced(wire, most),
            asked=wire.asked,
            metadata={**wire.metadata, **(headers or {})},
            classified=classified,
            is_probe=wire.max_tokens is not None and wire.max_tokens <= PROBE_TOKENS,
            cached_tokens=self.tree.segments[prompt.anchor].end - prompt.trim,
            mark=history.mark,
        )

    def count(self, dialect: Dialect, wire: ParsedRequest) -> int:
        """Tokens of the prompt this request would make."""
        return len(self._prompt(dialect, wire)[2].ids)

    def _prompt(
        self, dialect: Dialect, wire: ParsedRequest
    ) -> tuple[RequestHistory, PrefixMatch, Prompt, str]:
        history = self._history.history_of(dialect, wire)
        if not len(history) and not history.preface.system:
            message = "expected at least one message, found none"
            raise RequestError(message, where=dialect.conversation)
        place = match_prefix(self.tree, history, self._keys, self._renderer)
        where = dialect.conversation
        check_context_early(history, place, self._renderer, self._context_tokens, where=where)
        last = history.units(len(history) - 1)[0] if len(history) else None
        if last is None or last.role != "assistant":
            return history, place, compose(self.tree, history, place, self._renderer), ""
        matched = len(place.path) == len(history) + 1
        if matched and self.tree.segments[place.path[-1]].call is not None:
            return history, place, extend(self.tree, history, place, self._renderer), ""
        (given,) = history.messages(last)
        if given.calls:
            where = f"{dialect.conversation}[{len(wire.messages) - 1}]"
            raise RequestError("a conversation cannot end on a tool call", where=where)
        history.drop_last()
        place = replace(place, path=place.path[: len(history) + 1])
        prompt = compose(self.tree, history, place, self._renderer)
        prompt = prefilled(prompt, self._renderer.encode(given.text))
        return history, place, prompt, given.text

    def _enforced(self, wire: ParsedRequest, most: int) -> SamplingParams:
        """The run's settings; the client's own only shorten the reply (SPEC 4.6)."""
        if wire.max_tokens is not None:
            most = min(most, max(1, wire.max_tokens))
        sampling = replace(
            self._sampling, max_tokens=most, stop=wire.stop, stop_ids=self._renderer.stop_ids
        )
        if not self._honour_sampling:
            return sampling
        temperature, top_p = wire.asked.get("temperature"), wire.asked.get("top_p")
        if isinstance(temperature, int | float):
            sampling = replace(sampling, temperature=float(temperature))
        if isinstance(top_p, int | float):
            sampling = replace(sampling, top_p=float(top_p))
        return sampling

    # Recording

    def open_call(self, pending: PositionedRequest, at: float) -> CallOpened:
        """The record that this request goes to an engine; takes the next call id."""
        call = CallId(self._next)
        self._next += 1
        return CallOpened(
            call=call,
            at=at,
            dialect=pending.dialect,
            num_messages=pending.num_messages,
            prompt_tokens=pending.prompt_tokens,
        )

    def close_call(
        self, pending: PositionedRequest, opened: CallOpened, output: Output, at: float
    ) -> tuple[CallClosed, Reply]:
        """Exactly what the engine saw and said, and what the harness gets of it."""
        prompt, flags = self._as_seen(pending, output)
        logprobs = _aligned(output)
        if logprobs is None and output.ids:
            flags.append("no-logprobs")
        if not pending.classified.known:
            flags.append("unknown-harness")
        message = self._message(pending, opened.call, output)
        whole = message
        if pending.prefill:
            whole = replace(message, text=pending.prefill + message.text)
        anchor, inputs = self._settled(prompt)
        if "echo-mismatch" not in flags:
            self._pending[opened.call] = pending
        record = CallClosed(
            call=opened.call,
            parent=anchor,
            inputs=inputs,
            prompt=array("i", prompt.generation).tobytes(),
            output=array("i", output.ids).tobytes(),
            logprobs=logprobs,
            spans=output.spans,
            finish=output.finish,
            message=whole,
            # A reply no harness received can only be confused with one that a harness did (T08).
            keys=() if output.finish == "abort" else self._keys.reply(whole),
            role=pending.classified.role,
            harness=pending.classified.harness,
            agent=pending.classified.agent,
            fork=self._fork(prompt, anchor, inputs, flags),
            ambiguous=pending.place.ambiguous,
            trim=prompt.trim,
            sampling=pending.sampling,
            asked=pending.asked,
            metadata=pending.metadata,
            flags=tuple(flags),
            opened_at=opened.at,
            closed_at=at,
        )
        return record, self.reply(pending, opened.call, message, output, at)

    def reply(
        self, pending: PositionedRequest, call: CallId, message: Message, output: Output, at: float
    ) -> Reply:
        finish: Finish = "stop"
        if output.finish == "length":
            finish = "length"
        elif output.finish == "abort":
            finish = "abort"
        elif message.calls:
            finish = "tool_calls"
        return Reply(
            message=message,
            finish=finish,
            usage=Usage(
                prompt_tokens=pending.prompt_tokens,
                output_tokens=len(output.ids),
                cached_tokens=min(pending.cached_tokens, pending.prompt_tokens),
            ),
            model=pending.model,
            id=f"{call:06d}",
            at=at,
        )

    def _keep_trail(self, record: CallClosed) -> None:
        """The next request of the same agent is matched from where this one stood."""
        pending = self._pending.pop(record.call, None)
        if pending is None:
            return
        depth = self.tree.segments[record.parent].depth
        path = pending.place.path[:depth]
        if len(path) != depth or path[-1:] != [record.parent]:
            path = self.tree.path(record.parent)
        first = self.tree.calls[record.call].segment - len(record.inputs)
        path = [*path, *(SegmentId(first + number) for number in range(len(record.inputs)))]
        self._history.trails.keep(ResumePoint(mark=pending.mark, path=array("I", path)))

    def probe(self, pending: PositionedRequest, output: Output, at: float) -> Reply:
        """The answer to a probe, of which nothing is kept (M25)."""
        message = self._message(pending, CallId(0), output)
        return self.reply(pending, CallId(0), message, output, at)

    def _message(self, pending: PositionedRequest, call: CallId, output: Output) -> Message:
        tail = pending.prompt.ids[-TAIL_TOKENS:].tolist()
        parsed = self._renderer.parse(output.ids, tail, pending.preface.tools)
        text = _before_stop(parsed, pending.sampling.stop)
        if not text.strip():
            # Harnesses drop blank text from what they echo, so none is sent (T22).
            text = ""
        calls = tuple(
            ToolCall(
                id=f"call_{call:06d}{position:03d}",
                name=one.name,
                arguments=one.arguments,
                native_id=one.native_id,
            )
            for position, one in enumerate(parsed.calls)
        )
        return Message(role="assistant", text=text, reasoning=parsed.reasoning, calls=calls)

    def _as_seen(self, pending: PositionedRequest, output: Output) -> tuple[Prompt, list[str]]:
        """The prompt the engine says it saw; if it is another, that one is the truth (T01)."""
        prompt = pending.prompt
        if output.echo is None:
            return prompt, []
        raw = array("i", output.echo).tobytes()
        if raw == prompt.ids.tobytes():
            return prompt, []
        seen = np.frombuffer(raw, dtype=np.int32)
        anchor = self._agreeing(prompt.anchor, seen)
        rest = seen[self.tree.segments[anchor].end :].tobytes()
        fork = NewSegment(label="echo", key=self._keys.digest("echo", rest.hex()), ids=rest)
        changed = replace(prompt, anchor=anchor, inputs=(fork,), generation=[], trim=0, ids=seen)
        return changed, ["echo-mismatch"]

    def _agreeing(self, anchor: SegmentId, seen: np.ndarray) -> SegmentId:
        """The deepest segment on the path whose whole path the engine saw as it is stored."""
        path = self.tree.path_ids(anchor)
        common = min(len(path), len(seen))
        differ = np.flatnonzero(path[:common] != seen[:common])
        equal = int(differ[0]) if len(differ) else common
        while anchor != ROOT and self.tree.segments[anchor].end > equal:
            anchor = self.tree.segments[anchor].parent
        return anchor

    def _settled(self, prompt: Prompt) -> tuple[SegmentId, tuple[NewSegment, ...]]:
        """Segments that a sibling added since the positioning are shared, not added again."""
        anchor, inputs = prompt.anchor, list(prompt.inputs)
        while inputs and (same := self.tree.same(anchor, inputs[0])) is not None:
            anchor = same
            inputs.pop(0)
        return anchor, tuple(inputs)

    def _fork(
        self,
        prompt: Prompt,
        anchor: SegmentId,
        inputs: tuple[NewSegment, ...],
        flags: list[str],
    ) -> str | None:
        """Why the call stands beside others instead of extending one; None when it extends."""
        tree, segment = self.tree, self.tree.segments[anchor]
        if not tree.calls:
            return None
        if "echo-mismatch" in flags:
            return "echo-mismatch"
        if anchor == ROOT:
            return "new-root"
        if prompt.rerendered:
            return "rerendered"
        if segment.depth == 1 and segment.call is None:
            return "new-conversation"
        if any(new.label == "assistant" for new in inputs):
            return "injected"
        here = any(tree.calls_at(anchor))
        if segment.call is not None:
            return "branch" if tree.children(segment.call) else None
        if not inputs:
            return "retry" if here else "prefix"
        if here:
            return "reply-dropped"
        return "new-conversation" if segment.above is None else "edited"


def _aligned(output: Output) -> bytes | None:
    """float32 log-probabilities, one per id and finite, or nothing at all (T27)."""
    if output.logprobs is None or len(output.logprobs) != len(output.ids):
        return None
    if not all(map(isfinite, output.logprobs)):
        return None
    return array("f", output.logprobs).tobytes()


def _before_stop(parsed: ParsedReply, stops: tuple[str, ...]) -> str:
    """Visible text up to a stop string; the ids that spell it stay recorded (T31)."""
    ends = [found for stop in stops if stop and (found := parsed.text.find(stop)) >= 0]
    return parsed.text[: min(ends)] if ends else parsed.text
