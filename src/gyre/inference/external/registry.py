"""Starts a cell's vLLM or SGLang server, and returns it as an engine."""

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import aiohttp

from gyre.inference.clients.http import client
from gyre.inference.external import process
from gyre.inference.external.engine import ExternalEngine, ExternalServerApi
from gyre.inference.external.process import ServerChild, ServerCommand, ServerKind, ServerSettings
from gyre.inference.external.sglang import SglangServerApi
from gyre.inference.external.vllm import VllmServerApi
from gyre.model.network import Network

KINDS: tuple[ServerKind, ...] = ("vllm", "sglang")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLaunch:
    """Name, kind and settings of the server that a cell starts."""

    name: str
    kind: ServerKind
    wanted: ServerSettings


async def open_served(opening: ServerLaunch, network: Network) -> ExternalEngine:
    """The engine, once its server answers; EngineError if it does not come up in time."""
    wanted = opening.wanted
    launched = _launched(opening)
    child = await ServerChild.start(
        opening.name, launched.command, launched.variables, folder=wanted.folder
    )
    remote = _remote(opening, launched, _session(launched))
    is_up = False
    try:
        await child.wait_answering(remote.answers, wanted.server.start_s)
        room = await remote.room()
        if isinstance(remote, VllmServerApi):
            await remote.name_version(wanted.version)
        is_up = True
    finally:
        if not is_up:
            await child.end()
            await remote.close()
    return ExternalEngine(
        opening.name,
        remote,
        child,
        network,
        room,
        model=str(wanted.model),
        version=wanted.version,
        most_running=wanted.engine.capacity,
        weights=wanted.server.weights,
    )


def private_folder() -> Path:
    """A new one in memory where there is such a place, which no other user can read."""
    in_memory = Path("/dev/shm")
    return Path(mkdtemp(prefix="gyre-server-", dir=in_memory if in_memory.is_dir() else None))


def free_port() -> int:
    with socket.socket() as held:
        held.bind((process.HOST, 0))
        port: int = held.getsockname()[1]
    return port


def _launched(opening: ServerLaunch) -> ServerCommand:
    if opening.kind == "vllm":
        return process.vllm(opening.wanted)
    return process.sglang(opening.wanted, port=free_port(), key=secrets.token_urlsafe(32))


def _session(launched: ServerCommand) -> aiohttp.ClientSession:
    if launched.socket is not None:
        return client(socket_path=launched.socket)
    return client(key=launched.key)


def _remote(
    opening: ServerLaunch, launched: ServerCommand, session: aiohttp.ClientSession
) -> ExternalServerApi:
    wanted = opening.wanted
    if opening.kind == "vllm":
        return VllmServerApi(
            opening.name, launched.url, session, share=wanted.folder, version=wanted.version
        )
    return SglangServerApi(opening.name, launched.url, session)
