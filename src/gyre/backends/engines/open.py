"""An engine from its address: `sglang=http://host:port`, `vllm=...`, or the address alone."""

import asyncio
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import aiohttp

from gyre.backends.engines.sglang import SglangEngine
from gyre.backends.engines.vllm import VllmEngine
from gyre.backends.engines.wire import Wire
from gyre.words.errors import ConfigError, EngineError
from gyre.words.ids import EngineName

Kind = Literal["sglang", "vllm"]
ASK_S = 10.0
"""How long an engine may take to say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """Where an engine is, and what it is if that was said."""

    url: str
    kind: Kind | None

    @property
    def name(self) -> EngineName:
        """The host and port, by which the engine is known."""
        return EngineName(urlsplit(self.url).netloc)


def read_address(text: str) -> EngineAddress:
    """The address as written on a command line."""
    kind: Kind | None = None
    url = text
    if text.startswith("sglang="):
        kind, url = "sglang", text.removeprefix("sglang=")
    elif text.startswith("vllm="):
        kind, url = "vllm", text.removeprefix("vllm=")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(
            f"engine {text!r}: expected http://host:port, optionally after sglang= or vllm="
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"engine {text!r}: an address has no query and no fragment")
    return EngineAddress(url=url.rstrip("/"), kind=kind)


async def connect(
    address: EngineAddress, session: aiohttp.ClientSession
) -> SglangEngine | VllmEngine:
    """The engine at the address, which is asked what it is when that was not said."""
    kind = address.kind if address.kind is not None else await _found(address, session)
    if kind == "sglang":
        return SglangEngine(address.name, address.url, session)
    return VllmEngine(address.name, address.url, session)


async def _found(address: EngineAddress, session: aiohttp.ClientSession) -> Kind:
    wire = Wire(address.name, address.url, session)
    try:
        async with asyncio.timeout(ASK_S):
            # In this order, because SGLang answers the OpenAI paths too.
            for path in ("/model_info", "/get_model_info"):
                if (await wire.get(path))[0] == 200:
                    return "sglang"
            if (await wire.get("/version"))[0] == 200 and (await wire.get("/v1/models"))[0] == 200:
                return "vllm"
    except TimeoutError as error:
        raise EngineError(f"engine {address.name}: no answer within {ASK_S:g} s") from error
    raise ConfigError(
        f"engine {address.url}: neither SGLang (/model_info) nor vLLM (/version, /v1/models);"
        " say which with sglang=URL or vllm=URL"
    )
