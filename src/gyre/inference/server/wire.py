"""What both wires of the server have in common: reading requests, and refusing what is not ours."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from gyre.inference.server.told import Tokenizer
from gyre.types.errors import (
    EngineDraining,
    EngineError,
    GyreError,
    ModelError,
    OutOfMemory,
    RequestError,
    Unavailable,
)

DONE = b"data: [DONE]\n\n"
Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_KINDS = {
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What does not change while a server runs."""

    model: str
    """As it was named when the server was started."""
    name: str
    """As clients are told."""
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


def read(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The body as its type; raises RequestError that says where it is another."""
    try:
        return decoder.decode(body or b"{}")
    except msgspec.MsgspecError as error:
        raise RequestError(str(error)) from error
    except UnicodeDecodeError as error:
        message = "expected JSON in UTF-8"
        raise RequestError(message) from error
    except RecursionError as error:
        message = "expected JSON that is not nested without end"
        raise RequestError(message) from error


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


def frame(data: object) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % _ENCODER.encode(data)


def encoded(data: object) -> bytes:
    return _ENCODER.encode(data)


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
