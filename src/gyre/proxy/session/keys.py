"""Digests by which a message in a history finds its tokens, whatever the harness did to it.

A sampled reply is known by its text and the ids of its tool calls, because harnesses rewrite the
names and arguments they echo (SPEC 4.3, T12 to T16); where ids are unknown, by text and payload.
An input message is known by everything it says.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from gyre.types.conversation import Message, ToolCall

KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchDigests:
    """How one message of a history may be found under its parent segment."""

    sampled: tuple[bytes, ...]
    """As a sampled reply, the likeliest first: by its tool-call ids, then by their payloads; of
    each with the thinking that was said, then, where none was said, with any."""
    as_input: bytes
    """The same message given as input before."""


class MessageDigests:
    """Makes digests of messages, keyed by a salt so that content cannot aim at a collision."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def digest(self, *parts: str) -> bytes:
        """128 bits of all the parts, their borders included."""
        state = blake2b(digest_size=KEY_BYTES, key=self._salt)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)
        return state.digest()

    def run(self, keys: Iterable[MatchDigests]) -> MatchDigests:
        """Of several input messages that templates fold into one turn (M14)."""
        together = blake2b(digest_size=KEY_BYTES, key=self._salt)
        for key in keys:
            together.update(key.as_input)
        return MatchDigests(sampled=(), as_input=together.digest())

    def of(self, message: Message) -> MatchDigests:
        """How this message of an incoming history may be found."""
        if message.role != "assistant":
            return MatchDigests(sampled=(), as_input=self._as_input(message))
        # Dialects need not echo thinking; its absence says nothing, so it matches any (T20).
        thoughts = [_thought(message)] if message.reasoning else [_thought(message), _ANY]
        return MatchDigests(
            sampled=self._replies(message, thoughts), as_input=self._as_input(message)
        )

    def reply(self, message: Message) -> tuple[bytes, ...]:
        """Under which digests a sampled reply is entered, in the form it was returned (T22)."""
        return self._replies(message, [_thought(message), _ANY])

    def _replies(self, message: Message, thoughts: list[tuple[str, ...]]) -> tuple[bytes, ...]:
        ids = [plain_id(call.id) for call in message.calls]
        payloads = [part for call in message.calls for part in _payload(call)]
        ways = [("ids", ids), ("payload", payloads)] if message.calls else [("ids", ids)]
        return tuple(
            self.digest(way, *thought, message.text, *parts)
            for way, parts in ways
            for thought in thoughts
        )

    def _as_input(self, message: Message) -> bytes:
        calls = (part for call in message.calls for part in (plain_id(call.id), *_payload(call)))
        answers = plain_id(message.answers) if message.answers else ""
        thought = _thought(message)
        return self.digest("input", message.role, message.text, answers, *thought, *calls)


def plain_id(call_id: str) -> str:
    """A tool-call id without what harnesses strip from ids (T15)."""
    return "".join(filter(str.isalnum, call_id)) or call_id


_ANY = ("any",)


def _thought(message: Message) -> tuple[str, ...]:
    return ("said", message.reasoning) if message.reasoning else ("unsaid",)


def _payload(call: ToolCall) -> tuple[str, str]:
    return call.name, canonical_arguments(call.arguments)


def canonical_arguments(text: str) -> str:
    """One spelling for arguments that differ in key order, spaces or escapes only.

    Text that is not plain JSON (duplicate keys, NaN, overflow, absurd nesting) stays as it is: it
    equals itself and nothing else (T18).
    """
    try:
        value = json.loads(
            text or "{}",
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse,
            parse_float=_finite,
        )
        canonical = json.dumps({} if value is None else value, sort_keys=True)
    except (ValueError, RecursionError):
        return "raw " + text
    return "json " + canonical


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        message = "duplicate keys"
        raise ValueError(message)
    return found


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value
