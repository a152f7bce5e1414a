"""Request parsing, detokenization, error bodies."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from gyre.types.errors import (
    EngineDraining,
    EngineError,
    GyreError,
    ModelError,
    OutOfMemory,
    RequestError,
    Unavailable,
)
from gyre.types.sampling import Chunk, GenerateRequest

HALF = "\N{REPLACEMENT CHARACTER}"
"""What the last token of a text spells while a character is not whole."""


class Tokenizer(Protocol):
    """Text to ids and back, as the model's folder says."""

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with what the model expects before it; ValueError if there are none."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """Some neighbouring tokens of an output."""

    ids: list[int]
    logprobs: list[float]
    text: str
    """What may be shown by now; a stop string, or half a character, is held back."""
    finish: str | None
    prompt_ids: list[int] | None
    """The engine's echo, on the first piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens `start` to `end` of an output were sampled by one version."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class Detokenizer:
    """The text of an output as it grows."""

    tokenizer: Tokenizer | None
    """None: the text stays empty."""
    skip_special: bool
    stops: tuple[str, ...]
    """Strings that are cut off; none where the stop string is to be shown."""
    _ids: list[int] = field(default_factory=list)
    _context: int = 0
    """First id that is decoded again, because spelling may depend on the neighbour before."""
    _spelled: int = 0
    """Ids whose text is known."""
    _held: str = ""

    def add(self, ids: Sequence[int], *, is_last: bool) -> str:
        """Text that can be shown now."""
        if self.tokenizer is None:
            return ""
        self._ids += ids
        self._held += self._new_text(self.tokenizer, is_last)
        ends = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if ends:
            shown, self._held = self._held[: min(ends)], ""
        else:
            keep = 0 if is_last else self._num_begun()
            cut = len(self._held) - keep
            shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _new_text(self, tokenizer: Tokenizer, is_last: bool) -> str:
        known = self._ids[self._context : self._spelled]
        before = tokenizer.decode(known, skip_special=self.skip_special)
        whole = tokenizer.decode(self._ids[self._context :], skip_special=self.skip_special)
        if whole.endswith(HALF) and not is_last:
            return ""
        self._context, self._spelled = self._spelled, len(self._ids)
        return whole[len(before) :]

    def _num_begun(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        lengths = range(max(map(len, self.stops), default=1) - 1, 0, -1)
        ends = (n for n in lengths if any(s.startswith(self._held[-n:]) for s in self.stops))
        return min(next(ends, 0), len(self._held))


class OutputStream:
    """One request's output as clients get it: text and tokens, piece by piece."""

    def __init__(
        self,
        ask: GenerateRequest,
        tokenizer: Tokenizer | None,
        *,
        skip_special: bool,
        show_stop: bool,
    ) -> None:
        self.ask = ask
        self.num_prompt = len(ask.input_ids) // 4
        self.num_tokens = 0
        self.spans: list[VersionSpan] = []
        self.matched: int | str | None = None
        """The stop id or stop string that ended it."""
        self._tokenizer = tokenizer
        self._show_stop = show_stop
        stops = () if show_stop else ask.sampling.stop
        self._spelling = Detokenizer(tokenizer, skip_special, stops)

    def take(self, chunks: Sequence[Chunk]) -> OutputPiece:
        """The chunks as one piece."""
        ids: list[int] = []
        logprobs: list[float] = []
        echo, finish = None, None
        for chunk in chunks:
            self._count(chunk)
            ids += chunk.ids
            logprobs += chunk.logprobs or []
            echo = chunk.prompt_ids if echo is None else echo
            finish = chunk.finish
        shown = ids
        if finish == "stop":
            self.matched = self._match(ids)
            if isinstance(self.matched, int) and not self._show_stop:
                shown = ids[:-1]
        text = self._spelling.add(shown, is_last=finish is not None)
        return OutputPiece(ids=ids, logprobs=logprobs, text=text, finish=finish, prompt_ids=echo)

    def spelled(self, token: int) -> str:
        """One token by itself."""
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode([token], skip_special=False)

    def _count(self, chunk: Chunk) -> None:
        if not chunk.ids:
            return
        start, self.num_tokens = self.num_tokens, self.num_tokens + len(chunk.ids)
        version = str(chunk.version)
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version=version, start=start, end=self.num_tokens))

    def _match(self, ids: Sequence[int]) -> int | str | None:
        sampling = self.ask.sampling
        if ids and ids[-1] in sampling.stop_ids:
            return ids[-1]
        # Of several strings the engine does not say which it met.
        return sampling.stop[0] if len(sampling.stop) == 1 else None


DONE = b"data: [DONE]\n\n"
Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
T = TypeVar("T")

_KINDS = {
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The served model's name, tokenizer and limits, which do not change while a server runs."""

    model: str
    """As it was named when the server was started."""
    name: str
    """As clients read it."""
    context_tokens: int
    tokenizer: Tokenizer | None
    """None where the model's folder has none: prompts are then ids, and texts empty."""
    end_ids: tuple[int, ...]
    """Ids that end a reply unless a request ignores them."""


class NeutralSettings(msgspec.Struct):
    """Settings that would change the distribution or the answer, and are only understood off."""

    n: int | None = 1
    min_p: float | None = 0.0
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    repetition_penalty: float | None = 1.0
    logit_bias: Mapping[str, Any] | None = None

    def refuse_others(self, within: str = "") -> None:
        """Raises RequestError where one of them is on."""
        for name in NeutralSettings.__struct_fields__:
            neutral = getattr(_OFF, name)
            found = getattr(self, name)
            if found not in (None, neutral, {}):
                refuse(within + name, f"{neutral}, as this engine has nothing else", found)


_OFF = NeutralSettings()


def read(body: bytes, kind: type[T]) -> T:
    """The body as its type; raises RequestError that says where it is another."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise RequestError(str(error)) from error
    except UnicodeDecodeError as error:
        raise RequestError("expected JSON in UTF-8") from error
    except RecursionError as error:
        raise RequestError("expected JSON that is not nested without end") from error


def refuse(where: str, expected: str, found: object) -> None:
    raise RequestError(f"expected {expected}, found {found!r}", where=where)


def prompt(served: ServedModel, where: str, given: str | Sequence[int] | None) -> bytes:
    """Ids of a prompt, as an ask has them."""
    if isinstance(given, str):
        if served.tokenizer is None:
            refuse(where, "ids, because the model's folder has no tokenizer.json", "text")
        else:
            try:
                given = served.tokenizer.encode(given)
            except ValueError as error:
                raise RequestError(str(error), where=where) from error
    if not given:
        refuse(where, "at least one id", given)
    return array("i", given or ()).tobytes()


def strings(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def top_k(where: str, given: int | None) -> int | None:
    """None for all tokens, which both wires also spell as -1."""
    if given is None or given == -1:
        return None
    if given < 1:
        refuse(where, "1 or more, or -1 for all", given)
    return given


def encoded(data: object) -> bytes:
    return msgspec.json.encode(data)


def status_of(error: GyreError) -> int:
    """400 for what can never be, 503 for what may be tried again, and what a refusal says."""
    match error:
        case Unavailable() | EngineDraining() | OutOfMemory():
            return 503
        case RequestError():
            return error.status
        case EngineError():
            return 503 if error.retryable else 400
        case ModelError():
            return 400
    return 500


def refused(error: GyreError) -> dict[str, Any]:
    """An error as both wires write it."""
    status = status_of(error)
    where = error.where if isinstance(error, RequestError) else None
    kind = _KINDS.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": str(error), "type": kind, "param": where, "code": status}}
