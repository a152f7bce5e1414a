"""HTTP client of engines: sessions, bodies, errors, prompt-text cache.

How an ask is sampled, in the words that vLLM and SGLang share.

Every setting is said, because a server has preferences of its own, or takes them from its model's
folder (SPEC 4.6).
"""

import socket
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
import numpy as np
import orjson
from aiohttp import AddrInfoType

from gyre.net.sse import EventTooLong, SseParser
from gyre.types.errors import EngineError
from gyre.types.sampling import GenerateRequest, SamplingParams

LARGEST_ID = 2**31 - 1
LARGEST = 3.4e38
"""As records hold log-probabilities, in 32 bits."""
MOST_DIGITS = 18
"""Of a version."""


def check(
    engine: str, ids: Sequence[int], logprobs: Sequence[float | None] | None
) -> list[float] | None:
    """The log-probabilities, all finite and one per id, or None when there are none at all.

    Anything else is garbage, of which nothing may be kept.
    """
    if not _are_ids(ids):
        raise EngineError(f"engine {engine}: an output id outside 0..{LARGEST_ID}")
    if logprobs is None:
        return None
    if len(logprobs) != len(ids):
        raise EngineError(
            f"engine {engine}: {len(logprobs)} log-probabilities for {len(ids)} output ids"
        )
    given = [value for value in logprobs if value is not None]
    # Compared one by one, because a sum overflows, and what is no number compares with nothing.
    if len(given) != len(ids) or not all(-LARGEST <= value <= LARGEST for value in given):
        raise EngineError(f"engine {engine}: a log-probability that is not a finite number")
    return given


def check_echo(engine: str, ids: Sequence[int] | None) -> None:
    """What the engine says it was sent can be compared with what it was."""
    if ids is not None and not _are_ids(ids):
        raise EngineError(f"engine {engine}: an echoed id outside 0..{LARGEST_ID}")


def version(said: str | int | None) -> int | None:
    """The weights version as a number; engines that never got one say "default"."""
    if isinstance(said, str):
        is_number = said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS
        return int(said) if is_number else None
    return said if said is None or 0 <= said < 10**MOST_DIGITS else None


def _are_ids(ids: Sequence[int]) -> bool:
    return not ids or 0 <= min(ids) <= max(ids) <= LARGEST_ID


MOST_BYTES = 64 * 2**20
"""Memory for ids and their text, over all executions of an engine."""
FEWEST_IDS = 8192
"""Shorter prompts are written anew as quickly."""
MOST_AGENTS = 3
"""Prompts kept of one execution, whose agents talk in turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    ids: bytes
    text: bytes

    @property
    def nbytes(self) -> int:
        return len(self.ids) + len(self.text)


class PromptTextCache:
    """The last long prompts of each execution, the longest unused forgotten first."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._of: OrderedDict[str, list[_Asked]] = OrderedDict()
        self._nbytes = 0

    def text(self, execution: str, ids: bytes) -> bytes:
        """The int32 ids as JSON numbers with commas between."""
        if len(ids) < 4 * FEWEST_IDS:
            return _written(ids)
        known = self._of.pop(execution, [])
        text = None
        for one in known:
            if ids.startswith(one.ids):
                rest = _written(ids[len(one.ids) :])
                text = one.text + b"," + rest if rest else one.text
                self._nbytes -= one.nbytes
                known.remove(one)
                break
        new = _Asked(ids=ids, text=_written(ids) if text is None else text)
        known.append(new)
        self._nbytes += new.nbytes
        if len(known) > MOST_AGENTS:
            self._nbytes -= known.pop(0).nbytes
        self._of[execution] = known
        while self._nbytes > self._most_bytes and self._of:
            _, forgotten = self._of.popitem(last=False)
            self._nbytes -= sum(one.nbytes for one in forgotten)
        return new.text


def _written(ids: bytes) -> bytes:
    # orjson reads the ids through numpy, because a Python int for each would cost the most.
    array = np.frombuffer(ids, dtype=np.dtype("<i4"))
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


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
    """HTTP requests to one engine: sessions, errors, and streams."""

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
            # From the system's own error, so that a refused connection differs from other failures.
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


def shared(sampling: SamplingParams) -> dict[str, Field]:
    """What both call by the same names."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop),
        "skip_special_tokens": False,
    }


VLLM_STREAM_TOKENS = 16
"""Tokens per event, where vLLM knows the option; a server that dies loses at most these."""


def vllm_stream(ask: GenerateRequest, settings: Mapping[str, Field]) -> dict[str, Field]:
    """A streamed request with these settings, for both wires of vLLM."""
    return {
        "request_id": ask.id,
        **settings,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def of_vllm(sampling: SamplingParams) -> dict[str, Field]:
    """Settings in the words of both wires of vLLM."""
    fields: dict[str, Field] = {
        "max_tokens": sampling.max_tokens,
        **shared(sampling),
        "include_stop_str_in_output": True,
        "logprobs": 0,
        "stream_interval": VLLM_STREAM_TOKENS,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


def of_sglang(sampling: SamplingParams, *, stream_tokens: int) -> dict[str, Field]:
    fields: dict[str, Field] = {
        "max_new_tokens": sampling.max_tokens,
        **shared(sampling),
        # An ask names every id that ends it; with this set SGLang would look for none of them.
        "ignore_eos": not sampling.stop_ids,
        "no_stop_trim": True,
        "stream_interval": stream_tokens,
    }
    if sampling.seed is not None:
        fields["sampling_seed"] = sampling.seed
    return fields
