"""The exception hierarchy, and escaping of foreign text for terminals."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but tabs and ends of lines, marks that turn the direction of text, halves of pairs."""


def visible(text: str, most: int | None = None) -> str:
    """What a terminal would obey is spelled out; at most so many letters of it, with its end cut.

    The result can be encoded, also where the text could not.
    """
    if most is not None and len(text) > most:
        text = f"{text[:most]}... ({len(text)} letters)"
    return _HIDDEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class GyreError(Exception):
    """Any failure that Gyre names, in words that may quote others and that no terminal obeys."""

    def __str__(self) -> str:
        return visible(super().__str__())


class ConfigError(GyreError):
    """The command or run file asks for what cannot be."""


class RequestError(GyreError):
    """A client's request is refused, with the HTTP status that says so in every dialect."""

    status = 400

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class TooLarge(RequestError):
    """The body or one of its lists is over its limit."""

    status = 413


class NotFound(RequestError):
    """No such path or execution."""

    status = 404


class Unauthorized(RequestError):
    """No key, a wrong key, a key of another execution, or one that is closed."""

    status = 401


class Overloaded(RequestError):
    """A limit is reached that will pass; the client should try again after `retry_after_s`."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(RequestError):
    """No engine came back within the hold limit, or the disk refuses the log; may be retried."""

    status = 529


class Unreadable(RequestError):
    """What was recorded of this execution cannot be read back; a person must look."""

    status = 500


class ContextOverflow(RequestError):
    """The prompt is longer than the model's window (an ordinary way for an execution to end)."""

    def __init__(self, *, prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {max_tokens} maximum")
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class ModelError(GyreError):
    """A model or checkpoint cannot be used: unknown, corrupt, or of another shape."""


class BoundaryError(GyreError):
    """Something outside us failed."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class EngineError(BoundaryError):
    """An engine refused, vanished or answered garbage."""


class EngineDraining(EngineError):
    """The engine is leaving; ask another."""


class TaskError(BoundaryError):
    """A task cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class HarnessError(BoundaryError):
    """An agent program could not be installed."""


class SandboxError(BoundaryError):
    """A workspace or the programs in it could not be prepared, run, ended or read."""


class EvaluatorError(BoundaryError):
    """An assessment could not be made."""


class CellError(BoundaryError):
    """An accelerator could not do its part of the work."""


class CellGone(CellError):
    """A cell's process does not answer; what it held is lost."""


class CheckpointError(CellError):
    """A checkpoint was not written; the one before it, and what is trained, are as they were."""


class TransferError(CellError):
    """Bytes of another process did not come, or are not those that were described."""


class ExposureGone(TransferError):
    """Bytes of another process are held no longer; ask it for what it holds now."""


class OutOfMemory(CellError):
    """The device has no room for what was asked; what it held is unchanged."""


class NotFinite(CellError):
    """A loss or a gradient is no number; no step was taken (SPEC 3.3)."""


class TakenOver(GyreError):
    """Another controller goes on with the run; this one may change nothing any more."""


class LogDamaged(GyreError):
    """A call log is broken somewhere before its tail, so its records cannot be trusted."""


class InternalError(GyreError):
    """Our own code violated a stated rule; this is a bug and is never caught."""


@contextmanager
def wrap_errors(
    kind: Callable[[str], GyreError],
    where: object,
    caught: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """What is caught in the block is raised as an error of this kind that says where it was."""
    try:
        yield
    except caught as error:
        raise kind(f"{where}: {error}") from error
