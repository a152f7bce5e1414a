"""SGLang's stream read back: cumulative or incremental events become chunks of new tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from gyre.inference.clients import answer
from gyre.inference.clients.wire import decoded, refusal
from gyre.types.errors import EngineError
from gyre.types.sampling import Chunk

READ_EVERY_S = 0.25
"""How long events that repeat the whole output may wait unread; the latest holds them all."""
_RUNNING = b'"finish_reason":null'

T = TypeVar("T")


class _Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _VersionSpan(msgspec.Struct):
    version: str | int
    start: int
    end: int


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | int | None = None
    weight_versions: list[_VersionSpan] | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: int = 500


class _Event(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    prompt_token_ids: list[int] | None = None
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(_Event)


class SglangStreamParser:
    """One stream read so far; events that only repeat are left unread for a moment."""

    def __init__(self, engine: str, *, prompt_tokens: int) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._taken = 0
        self._cumulative = False
        self._echoed = False
        self._waiting: bytes | None = None
        self._read_at = 0.0
        self._version_mark = b""

    def feed(self, event: bytes, now: float) -> Iterator[Chunk]:
        """The chunks of this event; an empty one, a sign of life, when it is left for later."""
        goes_on = _RUNNING in event and self._version_mark in event
        if goes_on and self._cumulative and now - self._read_at < READ_EVERY_S:
            self._waiting = event
            yield Chunk(ids=[], logprobs=[])
            return
        if not goes_on:
            # The event before shows what was sampled before the end, or by the older weights.
            yield from self.flush()
        chunks = self._read(event)
        self._waiting = None
        self._read_at = now
        yield from chunks

    def flush(self) -> Iterator[Chunk]:
        """The chunks of what was left for later."""
        event, self._waiting = self._waiting, None
        if event is not None:
            yield from self._read(event)

    def _read(self, data: bytes) -> list[Chunk]:
        event = decoded(self._engine, _EVENT, data)
        if event.error is not None:
            raise refusal(self._engine, event.error.code, event.error.message)
        meta = event.meta_info
        if meta is None:
            raise self._garbage("an event without meta_info")
        finish = self._finish(meta.finish_reason)
        if finish == "abort":
            return self._aborted(event, meta)
        if event.output_ids is None or meta.completion_tokens is None:
            raise self._garbage("an event without its output ids")
        if meta.prompt_tokens not in (None, self._prompt_tokens):
            raise EngineError(
                f"engine {self._engine}: it read {meta.prompt_tokens} prompt tokens of the"
                f" {self._prompt_tokens} it was sent",
                retryable=False,
            )
        return self._chunks(event, meta, meta.completion_tokens, finish)

    def _finish(self, said: _Finish | None) -> str | None:
        if said is None:
            return None
        if said.type not in ("stop", "length", "abort"):
            raise self._garbage(f"finish reason {said.type!r}")
        if said.type == "abort" and said.status_code is not None:
            raise refusal(self._engine, said.status_code, said.message or "aborted")
        return said.type

    def _aborted(self, event: _Event, meta: _Meta) -> list[Chunk]:
        """What an abort adds; nothing where it does not align, as it may repeat the last id."""
        total = self._taken if meta.completion_tokens is None else meta.completion_tokens
        try:
            return self._chunks(event, meta, total, "abort")
        except EngineError:
            return [Chunk(ids=[], logprobs=[], finish="abort")]

    def _chunks(self, event: _Event, meta: _Meta, total: int, finish: str | None) -> list[Chunk]:
        listed = event.output_ids if event.output_ids is not None else []
        ids = self._new(listed, total)
        triples = meta.output_token_logprobs
        values = None
        if triples is not None:
            fresh = self._new(triples, total)
            if [token for _, token, _ in fresh] != ids:
                raise self._garbage("log-probabilities of other ids than it sampled")
            values = [value for value, _, _ in fresh]
        logprobs = answer.check(self._engine, ids, values)
        answer.check_echo(self._engine, event.prompt_token_ids)
        chunks = self._by_version(ids, logprobs, meta)
        if self._taken:
            self._cumulative = len(listed) == total > len(ids)
        if isinstance(meta.weight_version, str):
            self._version_mark = b'"weight_version":' + msgspec.json.encode(meta.weight_version)
        self._taken = total
        if event.prompt_token_ids is not None and not self._echoed:
            self._echoed = True
            chunks[0] = replace(chunks[0], prompt_ids=event.prompt_token_ids)
        chunks[-1] = replace(chunks[-1], finish=finish)
        return chunks

    def _new(self, listed: Sequence[T], total: int) -> list[T]:
        """What comes after the tokens already taken, in a list of all or of the new ones."""
        if len(listed) == total >= self._taken:
            return list(listed[self._taken :])
        if len(listed) == total - self._taken:
            return list(listed)
        raise self._garbage(
            f"{len(listed)} entries where {total} tokens are sampled and {self._taken} were taken"
        )

    def _by_version(self, ids: list[int], logprobs: list[float] | None, meta: _Meta) -> list[Chunk]:
        """The new ids, cut where the weights changed; at least one chunk."""
        spans = meta.weight_versions
        if spans is None or not ids:
            version = answer.version(meta.weight_version)
            return [Chunk(ids=ids, logprobs=logprobs, version=version)]
        chunks = []
        for span in spans:
            cut = slice(max(span.start - self._taken, 0), max(span.end - self._taken, 0))
            if piece := ids[cut]:
                values = None if logprobs is None else logprobs[cut]
                version = answer.version(span.version)
                chunks.append(Chunk(ids=piece, logprobs=values, version=version))
        if [token for chunk in chunks for token in chunk.ids] != ids:
            # Spans that do not cover the ids say nothing about them.
            return [Chunk(ids=ids, logprobs=logprobs, version=None)]
        return chunks

    def _garbage(self, found: str) -> EngineError:
        return EngineError(f"engine {self._engine}: {found}")
