"""Requests to a container daemon, Docker's or Podman's, over the socket it listens on."""

import asyncio
import http.client
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from gyre.types.errors import SandboxError, wrap_errors

ANSWER_S = 60.0
"""How long one request may take, on a machine that starts many containers at once."""
MOST_SAID = 500
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "tcp"}
_Done = TypeVar("_Done")


class DaemonRefusal(SandboxError):
    """The daemon answered a request with an error."""

    def __init__(self, message: str, *, status: int) -> None:
        # From 500 on it is the daemon's own trouble, which may pass.
        super().__init__(message, retryable=status >= 500 or status == 409)
        self.status = status


class _Connection(http.client.HTTPConnection):
    """To a socket with a path."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(slots=True)
class UpgradedConnection:
    """A connection that carries bytes both ways, until one side ends it."""

    connection: http.client.HTTPConnection
    answer: http.client.HTTPResponse

    def read(self, most_bytes: int) -> bytes:
        """What comes next; nothing at the end."""
        try:
            return self.answer.fp.read1(most_bytes)
        except (OSError, ValueError):
            return b""

    def close(self) -> None:
        """Ends the stream for the thread that reads."""
        if self.connection.sock is not None:
            # The other side may have been first.
            with suppress(OSError):
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Daemon:
    """A daemon of this machine; SandboxError says which socket does not answer, or what it says."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float = ANSWER_S,
        **query: object,
    ) -> Any:
        """The answer, read as JSON; None if it is empty."""
        said = await asyncio.to_thread(self.ask_now, method, path, body, timeout_s, query)
        with wrap_errors(
            SandboxError, f"{method} {path} at {self.path}: expected JSON", ValueError
        ):
            return json.loads(said) if said.strip() else None

    def ask_now(
        self,
        method: str,
        path: str,
        body: object = None,
        timeout_s: float = ANSWER_S,
        query: Mapping[str, object] | None = None,
    ) -> bytes:
        """The bytes of the answer; a body of bytes is an archive, any other becomes JSON."""
        with closing(_Connection(self.path, timeout_s)) as connection:
            return self._named(
                method,
                path,
                lambda: _asked(connection, method, path, body, query or {}, {}).read(),
            )

    def read(
        self, at: str, into: Callable[[http.client.HTTPResponse], None], **query: object
    ) -> None:
        """`into` reads the answer, piece by piece."""
        with closing(_Connection(self.path, ANSWER_S)) as connection:
            into(self._named("GET", at, lambda: _asked(connection, "GET", at, None, query, {})))

    def open(self, path: str, body: object = None, **query: object) -> UpgradedConnection:
        """A connection that stays."""
        connection = _Connection(self.path, ANSWER_S)
        try:
            answer = self._named(
                "POST", path, lambda: _asked(connection, "POST", path, body, query, _UPGRADE)
            )
        except SandboxError:
            connection.close()
            raise
        if connection.sock is not None:
            connection.sock.settimeout(None)
        return UpgradedConnection(connection, answer)

    def _named(self, method: str, path: str, asked: Callable[[], _Done]) -> _Done:
        """What fails below says where."""
        try:
            return asked()
        except (OSError, http.client.HTTPException) as error:
            raise SandboxError(
                f"{method} {path}: expected a daemon at {self.path}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _asked(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object,
    query: Mapping[str, object],
    headers: Mapping[str, str],
) -> http.client.HTTPResponse:
    """An answer that is no refusal; its body is not read yet."""
    kind, data = "application/json", None
    if isinstance(body, bytes):
        kind, data = "application/x-tar", body
    elif body is not None:
        data = json.dumps(body).encode()
    given = dict(headers) if data is None else {**headers, "Content-Type": kind}
    target = f"{path}?{urlencode(query)}" if query else path
    connection.request(method, target, data, given)
    answer = connection.getresponse()
    if answer.status >= 400:
        said = _message(answer.read())
        message = f"{method} {path}: refused with {answer.status}: {said}"
        raise DaemonRefusal(message, status=answer.status)
    return answer


def _message(data: bytes) -> str:
    """What the daemon says in words."""
    text = data.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("message"), str):
        text = found["message"].strip()
    return text[:MOST_SAID]
