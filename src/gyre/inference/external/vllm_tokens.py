"""vLLM's stream of tokens read back: ids, log-probabilities, and whose weights sampled them.

vLLM names versions when a request ends. While its weights have not changed since it began, they
are known before that; what comes later is held back until the end has told.
"""

from collections.abc import Iterator, Sequence

import msgspec

from gyre.inference.clients import answer
from gyre.inference.clients.wire import decoded, refusal
from gyre.types.errors import EngineError
from gyre.types.sampling import Chunk

NOTHING_SAID = 500
"""The code of an error that names none."""


class _Token(msgspec.Struct):
    token_id: int
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Span(msgspec.Struct):
    version: str | int
    start: int
    end: int


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Error(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(_Event)


class VllmStreamParser:
    """One stream read so far."""

    def __init__(self, engine: str, *, prompt_tokens: int) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        self._taken = 0
        self._said = 0
        """How many of the tokens taken were handed on, each with the version of its time."""
        self._versions: list[tuple[int, int]] = []
        """Of what was handed on: versions, and how many tokens each has."""
        self._held: list[Chunk] = []
        self._final: list[Chunk] | None = None

    def feed(self, data: bytes, version: int | None) -> Iterator[Chunk]:
        """The chunks of this event; `version` is None when weights have changed meanwhile."""
        event = decoded(self._engine, _EVENT, data)
        if event.error is not None:
            code = event.error.code
            status = code if isinstance(code, int) else NOTHING_SAID
            raise refusal(self._engine, status, event.error.message)
        if event.usage is not None:
            self._compare(event.usage)
        for choice in event.choices:
            yield from self._take(choice, event.prompt_token_ids, version)

    def last(self) -> Iterator[Chunk]:
        """What the end has told; EngineError if there was none."""
        if self._final is None:
            raise self._garbage("the stream ended without a finish reason")
        yield from self._final

    def _take(
        self, choice: _Choice, echo: list[int] | None, version: int | None
    ) -> Iterator[Chunk]:
        ids = choice.token_ids or []
        content = (choice.logprobs.content if choice.logprobs is not None else None) or []
        if [one.token_id for one in content] != ids:
            raise self._garbage("log-probabilities that are not of its ids")
        logprobs = answer.check(self._engine, ids, [one.logprob for one in content])
        answer.check_echo(self._engine, echo)
        self._taken += len(ids)
        chunk = Chunk(ids=ids, logprobs=logprobs, version=version, prompt_ids=echo)
        if choice.finish_reason is not None:
            self._held.append(chunk)
            self._final = list(self._ended(choice))
        elif version is None or self._held:
            # An empty chunk is a sign of life.
            self._held.append(chunk)
            yield Chunk(ids=[], logprobs=[])
        else:
            self._said += len(ids)
            self._versions.append((version, len(ids)))
            yield chunk

    def _ended(self, choice: _Choice) -> Iterator[Chunk]:
        """What was held back, cut where versions change, with the finish on the last."""
        finish = choice.finish_reason
        if finish not in ("stop", "length", "abort"):
            raise self._garbage(f"finish reason {finish!r}")
        told = self._told(choice.weight_versions or [])
        self._check_said(told)
        ids = [one for chunk in self._held for one in chunk.ids]
        logprobs = [one for chunk in self._held for one in chunk.logprobs or []]
        echo = next((one.prompt_ids for one in self._held if one.prompt_ids is not None), None)
        start = 0
        for version, end in _runs(told[self._said :]):
            yield Chunk(
                ids=ids[start:end],
                logprobs=logprobs[start:end],
                version=version,
                prompt_ids=echo,
            )
            start, echo = end, None
        yield Chunk(ids=[], logprobs=[], finish=finish, prompt_ids=echo)

    def _told(self, spans: Sequence[_Span]) -> list[int | None]:
        """The version of every token taken."""
        # Added up first, because what an engine says may be of any length.
        total = sum(max(0, one.end - one.start) for one in spans)
        if total != self._taken:
            raise self._garbage(f"versions of {total} of {self._taken} tokens")
        return [answer.version(one.version) for one in spans for _ in range(one.start, one.end)]

    def _check_said(self, told: Sequence[int | None]) -> None:
        """What was handed on before the end had told was what the end tells."""
        said = [version for version, count in self._versions for _ in range(count)]
        if said != list(told[: self._said]):
            raise self._garbage("another version of tokens than it had when they came")

    def _compare(self, usage: _Usage) -> None:
        if usage.prompt_tokens != self._prompt_tokens:
            raise EngineError(
                f"engine {self._engine}: it read {usage.prompt_tokens} prompt tokens of the"
                f" {self._prompt_tokens} it was sent",
                retryable=False,
            )
        if usage.completion_tokens != self._taken:
            raise self._garbage(f"{self._taken} of {usage.completion_tokens} tokens it sampled")

    def _garbage(self, found: str) -> EngineError:
        return EngineError(f"engine {self._engine}: {found}")


def _runs(versions: Sequence[int | None]) -> Iterator[tuple[int | None, int]]:
    """Each version with the place after its last token in a row."""
    for place, version in enumerate(versions, start=1):
        if place == len(versions) or versions[place] != version:
            yield version, place
