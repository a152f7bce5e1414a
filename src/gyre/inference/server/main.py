"""An engine process: model, tokenizer, loop and HTTP server, joined until a signal stops it."""

import json
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from gyre.aio import run_loop
from gyre.config.sections import EngineConfig, LimitsConfig
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.engine.open import OpenedEngine, open_loop
from gyre.inference.kv_transfer import SharedFolderKvStore
from gyre.inference.server.protocol import ServedModel
from gyre.inference.server.server import Server
from gyre.model.registry import model_folder
from gyre.net.http_server import listener, serve_until_told
from gyre.storage.files import read_key
from gyre.types.errors import ConfigError, ModelError, wrap_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """The settings of one engine process."""

    model: str
    name: str | None
    """What clients call it; None: as the model is named."""
    host: str
    port: int
    device: str | None
    dtype: str | None
    seed: int | None
    """Of requests that bring none; None: another one at every start."""
    key_file: Path | None
    engine: EngineConfig
    limits: LimitsConfig
    share: Path | None = None
    """Folder in memory through which engines of this machine hand each other cached blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """The address and limits of an engine process that has started."""

    url: str
    version: int
    context_tokens: int
    kv_tokens: int
    seed: int


class TokenizerFile:
    """A model's tokenizer.json."""

    def __init__(self, path: Path) -> None:
        data = _json(path)
        model = data.get("model")
        # Checked beforehand, because the library's own errors look like any others.
        if not isinstance(model, dict) or "vocab" not in model:
            raise ModelError(f"{path}: expected a tokenizer with a vocabulary")
        self._tokenizer = Tokenizer.from_str(json.dumps(data | {"truncation": None}))

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("expected text without lone surrogates") from error
        return self._tokenizer.encode(text).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def whole(self, ids: Sequence[int]) -> str:
        """The text with every special token in it, in which stop strings are looked for."""
        return self.decode(ids, skip_special=False)

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


async def serve(plan: ServerSpec, on_start: Callable[[RunningServer], None]) -> None:
    """Runs until SIGINT or SIGTERM; requests in flight then end with the tokens they have."""
    key = read_key(plan.key_file)
    if key is None and not _is_here(plan.host):
        raise ConfigError(
            f"--host {plan.host}: expected --api-key-file too: others could change the weights"
        )
    if plan.share is not None and not plan.share.is_dir():
        raise ConfigError(f"--share {plan.share}: expected a folder")
    # Before the weights are read, because a taken port is found at once.
    with listener(plan.host, plan.port) as on:
        folder = model_folder(plan.model)
        path = folder / "tokenizer.json"
        tokenizer = TokenizerFile(path) if path.is_file() else None
        seed = secrets.randbits(62) if plan.seed is None else plan.seed
        opened = open_loop(
            plan.model,
            plan.engine,
            device=plan.device,
            dtype=plan.dtype,
            seed=seed,
            decode=None if tokenizer is None else tokenizer.whole,
        )
        loop = opened.loop
        served = ServedModel(
            model=plan.model,
            name=plan.model if plan.name is None else plan.name,
            context_tokens=loop.context_tokens,
            tokenizer=tokenizer,
            end_ids=tuple(sorted(set(end_ids(folder, tokenizer)))),
        )
        host, port = on.getsockname()[:2]
        started = RunningServer(
            url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
            version=loop.version,
            context_tokens=loop.context_tokens,
            kv_tokens=loop.capacity().blocks * loop.capacity().block_tokens,
            seed=seed,
        )
        await _answer(plan, opened, served, key, on, lambda: on_start(started))


async def _answer(
    plan: ServerSpec,
    opened: OpenedEngine,
    served: ServedModel,
    key: str | None,
    on: socket.socket,
    on_start: Callable[[], None],
) -> None:
    engine = EmbeddedEngine(served.name, opened.loop)
    kv_store = None if plan.share is None else SharedFolderKvStore(plan.share, opened.device)
    try:
        server = Server(
            engine,
            served,
            limits=plan.limits,
            kv_bytes=opened.kv_bytes,
            key=key,
            kv_store=kv_store,
        )
        await serve_until_told(server, on, on_start=on_start, stopping=server.stop)
    finally:
        await engine.close()
        if kv_store is not None:
            kv_store.close()


def _is_here(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def end_ids(folder: Path, tokenizer: TokenizerFile | None) -> Iterator[int]:
    """Ids that end a reply, as the model's files say; some files say none."""
    for name in ("generation_config.json", "config.json"):
        said = _json(folder / name).get("eos_token_id")
        for token_id in said if isinstance(said, list) else [said]:
            if isinstance(token_id, int):
                yield token_id
    token = _json(folder / "tokenizer_config.json").get("eos_token")
    spelled = token.get("content") if isinstance(token, dict) else token
    if tokenizer is not None and isinstance(spelled, str):
        found = tokenizer.id_of(spelled)
        if found is not None:
            yield found


def _json(path: Path) -> dict[str, Any]:
    """A file's object; nothing where there is no file."""
    if not path.exists():
        return {}
    unreadable = (OSError, ValueError, RecursionError)
    with wrap_errors(ModelError, f"{path}: expected a JSON object", unreadable):
        data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ModelError(f"{path}: expected a JSON object, found a {type(data).__name__}")
    return data


def run(plan: ServerSpec, on_start: Callable[[RunningServer], None]) -> None:
    """The process's whole life."""
    run_loop(serve(plan, on_start), loop_factory=uvloop.new_event_loop)
