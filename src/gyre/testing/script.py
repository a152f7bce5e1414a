"""A scripted model: replies by place in the conversation, log-probabilities computed from ids.

Rule 1: a reply depends on the prompt alone, never on the order in which calls arrive.
Rule 2: a prompt that ends with the beginning of its reply gets the rest of it (T07).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol
from zlib import crc32

from tokenizers import Tokenizer

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
Finish = Literal["stop", "length"]
Where = Literal["anywhere", "system", "first user", "last user"]

TURN_OPENS = "<|im_start|>"
TURN_CLOSES = "<|im_end|>"
THOUGHT_NOTHING = "<think>\n\n</think>\n\n"
"""What a template writes after the generation prompt when thinking is off (T10)."""


class Coder(Protocol):
    """Text to ids and back; special tokens spelled in the text become their ids."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are spelled out."""
        ...


class FastCoder:
    """A coder over a `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One closed turn of a ChatML prompt."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The closed turns of a prompt, in order."""

    turns: tuple[ChatTurn, ...]

    def replies_since(self, marker: str, where: Where = "anywhere") -> int | None:
        """Assistant turns after the first place that holds the marker; None when none does."""
        for index in self._places(where):
            turn = self.turns[index]
            if turn.role != "assistant" and marker in turn.text:
                return sum(later.role == "assistant" for later in self.turns[index + 1 :])
        return None

    def _places(self, where: Where) -> Sequence[int]:
        match where:
            case "anywhere":
                return range(len(self.turns))
            case "system":
                return [i for i, turn in enumerate(self.turns) if turn.role == "system"]
            case "first user":
                return [i for i, turn in enumerate(self.turns) if turn.role == "user"][:1]
            case "last user":
                return [i for i, turn in enumerate(self.turns) if turn.role == "user"][-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call that a reply makes."""

    name: str
    arguments: Mapping[str, Json] | str
    """A mapping is written as JSON; a string is written as it is, valid or not."""

    def written(self) -> str:
        arguments = self.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(self.name, ensure_ascii=False)
        return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """What the model says in one place of the conversation."""

    text: str = ""
    reasoning: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    finish: Finish = "stop"
    """With "stop" the written reply ends with the closing special token."""
    ids: tuple[int, ...] | None = None
    """Sampled verbatim instead of the text; nothing is appended."""

    def written(self, *, thinks: bool = True) -> str:
        """The reply as the Qwen3 family writes it."""
        pieces = []
        if thinks and self.reasoning is not None:
            pieces.append(f"<think>\n{self.reasoning}\n</think>\n\n")
        body = [self.text] if self.text else []
        pieces.append("\n".join(body + [call.written() for call in self.calls]))
        if self.finish == "stop":
            pieces.append(TURN_CLOSES)
        return "".join(pieces)


Rule = Callable[[Conversation], ScriptedReply | None]


def after(marker: str, *replies: ScriptedReply, where: Where = "anywhere") -> Rule:
    """The n-th assistant turn that follows the marker is the n-th reply; no rule beyond them."""

    def rule(conversation: Conversation) -> ScriptedReply | None:
        said = conversation.replies_since(marker, where)
        return replies[said] if said is not None and said < len(replies) else None

    return rule


def always(reply: ScriptedReply) -> Rule:
    """The same reply everywhere; useful as the last rule."""
    return lambda conversation: reply


class NoReply(LookupError):
    """Raised when no rule of the script answers this conversation."""


@dataclass(frozen=True, slots=True)
class Script:
    """Rules in order; the first that answers gives the reply."""

    rules: Sequence[Rule]
    opening: str = field(default="", kw_only=True)
    """What this family's generation prompt holds after "assistant\\n", such as "<think>\\n"."""

    def reply_to(self, conversation: Conversation) -> ScriptedReply:
        for rule in self.rules:
            if (reply := rule(conversation)) is not None:
                return reply
        last = conversation.turns[-1] if conversation.turns else None
        raise NoReply(f"no rule of {len(self.rules)} answers after {last!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """What one ask will be answered with."""

    ids: list[int]
    logprobs: list[float]
    finish: Finish
    resumed: int
    """Ids of the reply that the prompt already held."""


def logprobs(before: bytes, ids: Sequence[int]) -> list[float]:
    """The scripted log-probability of each id after the int32 ids `before`.

    Multiples of 2**-18 in [-4, 0), so that float32 holds them exactly.
    """
    state = crc32(before)
    values = []
    for token in ids:
        state = crc32(token.to_bytes(4, "little", signed=True), state)
        values.append(-((state & 0xFFFFF) + 1) / 2**18)
    return values


class ScriptedModel:
    """A script read with one tokenizer: prompt ids in, reply ids out."""

    def __init__(self, script: Script, coder: Coder) -> None:
        self._script = script
        self._coder = coder
        self._opens = self._single(TURN_OPENS)
        self._closes = self._single(TURN_CLOSES)
        self._nothing = coder.encode(THOUGHT_NOTHING)
        self._opening = coder.encode(script.opening)
        # Because the turns of a conversation come again in each of its prompts.
        self._text_of = lru_cache(maxsize=8192)(self._decoded)

    def plan(self, input_ids: bytes, max_tokens: int) -> ScriptedAnswer:
        """The rest of the reply to this prompt, at most max_tokens of it; may raise NoReply."""
        prompt = memoryview(input_ids).cast("i").tolist()
        turns, tail = self._split(prompt)
        reply = self._script.reply_to(Conversation(turns=turns))
        thinks = tail[: len(self._nothing)] != self._nothing
        opening = self._opening if thinks else self._nothing
        if opening and tail[: len(opening)] == opening:
            tail = tail[len(opening) :]
        whole = self._encoded(reply, thinks=thinks)
        resumed = _overlap(tail, whole)
        rest = whole[resumed:]
        ids = rest[:max_tokens]
        finish: Finish = reply.finish if len(ids) == len(rest) else "length"
        return ScriptedAnswer(
            ids=ids, logprobs=logprobs(input_ids, ids), finish=finish, resumed=resumed
        )

    def _encoded(self, reply: ScriptedReply, *, thinks: bool) -> list[int]:
        if reply.ids is not None:
            return list(reply.ids)
        written = reply.written(thinks=thinks)
        return self._coder.encode(written.removeprefix(self._script.opening))

    def _split(self, prompt: list[int]) -> tuple[tuple[ChatTurn, ...], list[int]]:
        """The closed turns, and the ids after the heading of a last turn that is open."""
        turns: list[ChatTurn] = []
        starts = _positions(prompt, self._opens)
        for start, end in zip(starts, [*starts[1:], len(prompt)], strict=True):
            piece = prompt[start + 1 : end]
            if self._closes in piece:
                text = self._text_of(tuple(piece[: piece.index(self._closes)]))
                role, _, said = text.partition("\n")
                turns.append(ChatTurn(role=role, text=said))
            elif end == len(prompt):
                return tuple(turns), self._after_heading(piece)
        return tuple(turns), []

    def _after_heading(self, piece: list[int]) -> list[int]:
        for length in range(1, len(piece) + 1):
            if self._coder.decode(piece[:length]).endswith("\n"):
                return piece[length:]
        return []

    def _decoded(self, ids: tuple[int, ...]) -> str:
        return self._coder.decode(ids)

    def _single(self, special: str) -> int:
        ids = self._coder.encode(special)
        if len(ids) != 1:
            raise ValueError(f"tokenizer: {special} is {len(ids)} ids, expected one special id")
        return ids[0]


def _positions(ids: list[int], wanted: int) -> list[int]:
    found = []
    at = -1
    for _ in range(ids.count(wanted)):
        at = ids.index(wanted, at + 1)
        found.append(at)
    return found


def _overlap(tail: list[int], whole: list[int]) -> int:
    """How many ids at the end of tail are the beginning of whole, at most."""
    for length in range(min(len(tail), len(whole)), 0, -1):
        if tail[-length] == whole[0] and tail[-length:] == whole[:length]:
            return length
    return 0
