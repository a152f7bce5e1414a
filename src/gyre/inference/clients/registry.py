"""An engine from its address: `gyre=http://host:port`, `sglang=`, `vllm=`, or the address alone."""

import asyncio
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from gyre.inference.clients.http import EngineHttp
from gyre.inference.clients.sglang import GyreEngine, SglangEngine
from gyre.inference.clients.vllm import VllmEngine
from gyre.types.errors import ConfigError, EngineError
from gyre.types.ids import EngineName

Kind = Literal["gyre", "sglang", "vllm"]
KINDS: tuple[Kind, ...] = ("gyre", "sglang", "vllm")
ASK_S = 10.0
"""How long an engine may take to say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Where an engine is, and what it is if that was said."""

    url: str
    kind: Kind | None
    known_as: EngineName | None = None
    """What it is called, if that is not where it is: it has moved since it was first known."""

    @property
    def name(self) -> EngineName:
        """The host and port, by which the engine is known."""
        return EngineName(urlsplit(self.url).netloc) if self.known_as is None else self.known_as


def read_address(text: str) -> EngineAddress:
    """The address as written on a command line."""
    kind: Kind | None = None
    url = text
    for one in KINDS:
        if text.startswith(f"{one}="):
            kind, url = one, text.removeprefix(f"{one}=")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(
            f"engine {text!r}: expected http://host:port, optionally after gyre=, sglang= or vllm="
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"engine {text!r}: an address has no query and no fragment")
    return EngineAddress(url=url.rstrip("/"), kind=kind)


async def connect(
    address: EngineAddress, session: aiohttp.ClientSession
) -> SglangEngine | VllmEngine:
    """The engine at the address, which is asked what it is when that was not said."""
    kind = address.kind if address.kind is not None else await _found(address, session)
    if kind == "gyre":
        return GyreEngine(address.name, address.url, session)
    if kind == "sglang":
        return SglangEngine(address.name, address.url, session)
    return VllmEngine(address.name, address.url, session)


async def _found(address: EngineAddress, session: aiohttp.ClientSession) -> Kind:
    wire = EngineHttp(address.name, address.url, session)
    try:
        async with asyncio.timeout(ASK_S):
            # In this order, because SGLang answers the OpenAI paths too.
            for path in ("/model_info", "/get_model_info"):
                status, text = await wire.get(path)
                if status == 200:
                    return "gyre" if _says_gyre(text) else "sglang"
            if (await wire.get("/version"))[0] == 200 and (await wire.get("/v1/models"))[0] == 200:
                return "vllm"
    except TimeoutError as error:
        raise EngineError(f"engine {address.name}: no answer within {ASK_S:g} s") from error
    raise ConfigError(
        f"engine {address.url}: neither SGLang (/model_info) nor vLLM (/version, /v1/models);"
        " say which with sglang=URL or vllm=URL"
    )


class _About(msgspec.Struct):
    engine: str | None = None


def _says_gyre(text: bytes) -> bool:
    """Whether an engine that speaks SGLang's wire is one of our own."""
    try:
        return msgspec.json.decode(text, type=_About).engine == "gyre"
    except msgspec.MsgspecError:
        return False
