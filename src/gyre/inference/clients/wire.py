"""The HTTP that engines speak: one shared client, its failures turned into EngineError."""

import socket
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
import orjson
from aiohttp import AddrInfoType

from gyre.inference.clients.asked import PromptTextCache
from gyre.net.engines_sse import EventTooLong, SseParser
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest

DONE = b"[DONE]"
CONNECT_S = 5.0
"""A host that takes longer to accept a connection is as good as gone."""
MOST_ERROR_CHARACTERS = 2_000
_UNBOUNDED = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=None)
T = TypeVar("T")
_JSON = {"Content-Type": "application/json"}

_KEEPALIVE = (
    ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
    if sys.platform == "linux"
    else ()
)

Field = None | bool | int | float | str | list[int] | list[str] | Mapping[str, "Field"]


def _socket(address: AddrInfoType) -> socket.socket:
    """A socket whose peer is asked for signs of life, so that a vanished host ends the stream."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def client(*, socket_path: Path | None = None, key: str | None = None) -> aiohttp.ClientSession:
    """A client session for all engines: as many connections as calls, and no total limit.

    With a path it is for the one engine that listens there; a key is shown with every request.
    """
    connector: aiohttp.BaseConnector
    if socket_path is None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0, socket_factory=_socket)
    else:
        connector = aiohttp.UnixConnector(str(socket_path), limit=0)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=_UNBOUNDED,
        # Engines set no cookies, and looking for one costs every call.
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=None if key is None else {"Authorization": f"Bearer {key}"},
    )


class _Whole(aiohttp.payload.BytesPayload):
    """A body handed to the transport in one piece.

    aiohttp warns of large ones, because compressing or copying them takes long; this one is
    written as it is, and cut into pieces it costs a tenth of a long call.
    """

    def __init__(self, value: bytes) -> None:
        aiohttp.payload.Payload.__init__(self, value, content_type=_JSON["Content-Type"])
        self._size = len(value)


class EngineHttp:
    """One engine's address, and how it is asked."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self.name = name
        self._url = url.rstrip("/")
        self._session = session
        self._asked = PromptTextCache()

    def body(self, fields: Mapping[str, Field], *, ids_as: str, ask: GenerateRequest) -> bytes:
        """A JSON object of the fields and, under `ids_as`, the ids of the prompt."""
        written = orjson.dumps(fields)
        text = self._asked.text(ask.execution, ask.input_ids)
        return b'%b,"%b":[%b]}' % (written[:-1], ids_as.encode(), text)

    async def get(self, path: str) -> tuple[int, bytes]:
        with self._boundary(f"GET {path}"):
            async with self._session.get(self._url + path, allow_redirects=False) as response:
                return response.status, await response.read()

    async def post(self, path: str, payload: bytes) -> tuple[int, bytes]:
        with self._boundary(f"POST {path}"):
            async with self._session.post(
                self._url + path, data=payload, headers=_JSON, allow_redirects=False
            ) as response:
                return response.status, await response.read()

    async def stream(self, path: str, payload: bytes) -> AsyncGenerator[bytes, None]:
        """The data of each event until the stream ends; closing early drops the connection."""
        with self._boundary(f"POST {path}"):
            async with self._session.post(
                self._url + path,
                data=_Whole(payload),
                headers=_JSON,
                allow_redirects=False,
                read_bufsize=2**18,
            ) as response:
                if response.status != 200:
                    raise self._refusal(response.status, await response.read())
                events = SseParser()
                async for arrived in response.content.iter_any():
                    for event in events.feed(arrived):
                        if event != DONE:
                            yield event

    def _refusal(self, status: int, text: bytes) -> EngineError:
        return refusal(self.name, status, text.decode(errors="replace"))

    @contextmanager
    def _boundary(self, doing: str) -> Iterator[None]:
        try:
            yield
        except aiohttp.ClientConnectorError as error:
            # From the system's own error, so that a refused connection can be told from others.
            raise EngineError(f"engine {self.name}: {doing}: {error}") from error.os_error
        except (aiohttp.ClientError, OSError) as error:
            found = str(error) or type(error).__name__
            raise EngineError(f"engine {self.name}: {doing}: {found}") from error
        except EventTooLong as error:
            raise EngineError(f"engine {self.name}: {doing}: {error}") from error


def refusal(engine: str, status: int, text: str) -> EngineError:
    """The error that an HTTP status, or a code inside a stream, stands for."""
    retryable = status in (408, 425, 429) or not 400 <= status < 500
    return EngineError(
        f"engine {engine}: {status}: {text[:MOST_ERROR_CHARACTERS]}", retryable=retryable
    )


def decoded(engine: str, decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """The data as its type; what does not fit is garbage."""
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise EngineError(f"engine {engine}: not the JSON expected: {error}") from error
    except UnicodeDecodeError as error:
        raise EngineError(f"engine {engine}: text that is not UTF-8") from error
    except RecursionError as error:
        raise EngineError(f"engine {engine}: JSON that is nested too deeply") from error
