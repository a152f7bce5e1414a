"""A scripted engine over real HTTP, as a program of its own that can be killed or frozen.

python -m gyre.testing.engine_server --wire sglang --script module:function --tokenizer FILE
    --port 0 --ready-file FILE --log FILE
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import socket
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvicorn
from tokenizers import Tokenizer

from gyre.net.http_server import ClientGone, Exchange, Receive, Scope, Send
from gyre.testing.script import FastCoder, NoReply, Script, ScriptedAnswer, ScriptedModel
from gyre.testing.scripted_engine import EngineFault, FaultKind

DONE = b"data: [DONE]\n\n"
MOST_BYTES, BODY_S = 2**28, 60.0
"""Limits of a request's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """One request as a wire brought it."""

    id: str
    input_ids: bytes
    max_tokens: int
    wants_logprobs: bool
    wants_echo: bool


@dataclass(slots=True, kw_only=True)
class WireProgress:
    """How far the answer to one request has come."""

    plan: ScriptedAnswer
    versions: list[int] = field(default_factory=list)
    """Of each token sent, in order."""
    echoed: bool = False


class EngineWire(Protocol):
    """Names and shapes of one engine family."""

    @property
    def generate_path(self) -> str: ...

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        """Raises KeyError or TypeError for a request of another shape."""
        ...

    def event(
        self,
        asked: WireRequest,
        progress: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        """The tokens sent from `start` on, as one event, spoiled as the fault says."""
        ...

    def tail(self, asked: WireRequest, progress: WireProgress) -> bytes:
        """What follows the last event."""
        ...

    def about(self, version: int) -> Mapping[str, Any]:
        """Answers to plain GET requests, by path."""
        ...


def _ids(listed: list[int]) -> bytes:
    return array("i", listed).tobytes()


def _echo(asked: WireRequest, fault: FaultKind | None) -> list[int]:
    echo = memoryview(asked.input_ids).cast("i").tolist()
    if fault == "echo":
        echo[-1] += 1
    return echo


def _values(progress: WireProgress, start: int, fault: FaultKind | None) -> list[float]:
    values = progress.plan.logprobs[start : len(progress.versions)]
    if fault == "nan":
        return [float("nan"), *values[1:]]
    return values[1:] if fault == "lengths" else values


def _event(data: Mapping[str, Any], fault: FaultKind | None) -> bytes:
    text = json.dumps(data, separators=(",", ":"))
    return b"data: " + (text[: len(text) // 2] if fault == "json" else text).encode() + b"\n\n"


class SglangWire:
    """SGLang's /generate."""

    def __init__(self, *, incremental: bool) -> None:
        self._incremental = incremental

    @property
    def generate_path(self) -> str:
        return "/generate"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        return WireRequest(
            id=body["rid"],
            input_ids=_ids(body["input_ids"]),
            max_tokens=body["sampling_params"]["max_new_tokens"],
            wants_logprobs=body.get("return_logprob", False),
            wants_echo=body.get("return_prompt_token_ids", False),
        )

    def event(
        self,
        asked: WireRequest,
        progress: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        end = len(progress.versions)
        first = start if self._incremental else 0
        ids = progress.plan.ids[first:end]
        values = progress.plan.logprobs[first:start] + _values(progress, start, fault)
        meta: dict[str, Any] = {
            "id": asked.id,
            "finish_reason": None if finish is None else {"type": finish},
            "prompt_tokens": len(asked.input_ids) // 4,
            "weight_version": str(progress.versions[-1] if progress.versions else 0),
            "completion_tokens": end,
            "weight_versions": _spans(progress.versions),
        }
        if asked.wants_logprobs and fault != "no logprobs":
            triples = zip(values, ids, strict=fault != "lengths")
            meta["output_token_logprobs"] = [[value, token, None] for value, token in triples]
        data: dict[str, Any] = {"text": "", "output_ids": ids, "meta_info": meta}
        if fault == "no ids":
            del data["output_ids"]
        if asked.wants_echo:
            data["prompt_token_ids"] = _echo(asked, fault)
        return _event(data, fault)

    def tail(self, asked: WireRequest, progress: WireProgress) -> bytes:
        return DONE

    def about(self, version: int) -> Mapping[str, Any]:
        info = {"model_path": "scripted", "weight_version": str(version), "is_generation": True}
        return {"/health": {}, "/model_info": info, "/get_model_info": info}


class VllmWire:
    """vLLM's /v1/completions."""

    @property
    def generate_path(self) -> str:
        return "/v1/completions"

    def read(self, body: Mapping[str, Any]) -> WireRequest:
        return WireRequest(
            id=body["request_id"],
            input_ids=_ids(body["prompt"]),
            max_tokens=body["max_tokens"],
            wants_logprobs=body.get("logprobs") is not None,
            wants_echo=body.get("return_token_ids", False),
        )

    def event(
        self,
        asked: WireRequest,
        progress: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        ids = progress.plan.ids[start : len(progress.versions)]
        choice: dict[str, Any] = {"index": 0, "text": "x" * len(ids), "finish_reason": finish}
        if fault != "no ids":
            choice["token_ids"] = ids
        if asked.wants_logprobs and fault != "no logprobs":
            choice["logprobs"] = {"token_logprobs": _values(progress, start, fault)}
        if asked.wants_echo and not progress.echoed:
            progress.echoed = True
            choice["prompt_token_ids"] = _echo(asked, fault)
        return _event({"id": f"cmpl-{asked.id}", "model": "scripted", "choices": [choice]}, fault)

    def tail(self, asked: WireRequest, progress: WireProgress) -> bytes:
        usage = {
            "prompt_tokens": len(asked.input_ids) // 4,
            "completion_tokens": len(progress.versions),
        }
        return _event({"choices": [], "usage": usage}, None) + DONE

    def about(self, version: int) -> Mapping[str, Any]:
        return {
            "/health": {},
            "/version": {"version": "0.0.0"},
            "/v1/models": {"object": "list", "data": [{"id": "scripted", "owned_by": "vllm"}]},
            "/weight_info": {"weight_version": str(version)},
        }


def _spans(versions: list[int]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for position, version in enumerate(versions):
        if spans and spans[-1]["version"] == str(version):
            spans[-1]["end"] = position + 1
        else:
            spans.append({"version": str(version), "start": position, "end": position + 1})
    return spans


_FAULT = msgspec.json.Decoder(EngineFault | None)
_FAULTS = msgspec.json.Decoder(list[EngineFault | None])


class ConnectionCut(ConnectionAbortedError):
    """Raised out of the application so that the server drops the connection."""


class ScriptedServer:
    """The ASGI application: one engine family's paths, and /script/* to steer it."""

    def __init__(
        self,
        model: ScriptedModel,
        wire: EngineWire,
        *,
        log: Path | None = None,
        version: int = 0,
        chunk_tokens: int = 4,
        chunk_delay_s: float = 0.0,
    ) -> None:
        self._model = model
        self._wire = wire
        self._version = version
        self._chunk_tokens = chunk_tokens
        self._chunk_delay_s = chunk_delay_s
        self._fault: EngineFault | None = None
        self._next_faults: deque[EngineFault | None] = deque()
        self._running: dict[str, asyncio.Event] = {}
        self._aborted: list[str] = []
        self._stalled: list[str] = []
        self._changed = asyncio.Condition()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._log = None if log is None else os.open(log, flags, 0o644)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            with suppress(ClientGone):
                await self._serve(Exchange(scope, receive, send))

    async def _serve(self, exchange: Exchange) -> None:
        body = await exchange.body(most_bytes=MOST_BYTES, within_s=BODY_S)
        if exchange.path == self._wire.generate_path:
            await self._generate(body, exchange)
        elif exchange.path == "/abort_request":
            self._abort(json.loads(body).get("rid", ""))
            await _answer(exchange, 200, {})
        elif exchange.path.startswith("/script/"):
            await _answer(exchange, 200, await self._steer(exchange.path, body))
        else:
            await self._about(exchange)

    async def _about(self, exchange: Exchange) -> None:
        if self._fault is not None and self._fault.kind == "hang":
            await asyncio.Event().wait()
        answers = self._wire.about(self._version)
        if exchange.path in answers:
            await _answer(exchange, 200, answers[exchange.path])
        else:
            await _answer(exchange, 404, {"error": f"no path {exchange.path}"})

    async def _steer(self, path: str, body: bytes) -> Mapping[str, Any]:
        if path == "/script/fault":
            self._fault = _FAULT.decode(body)
        elif path == "/script/faults":
            self._next_faults.extend(_FAULTS.decode(body))
        elif path == "/script/version":
            self._version = int(body)
        elif path == "/script/aborted":
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._aborted) >= int(body))
        elif path == "/script/stalled":
            async with self._changed:
                await self._changed.wait_for(lambda: len(self._stalled) >= int(body))
        return {"running": list(self._running), "aborted": self._aborted}

    def _abort(self, rid: str) -> None:
        for running, stop in self._running.items():
            if rid and running.startswith(rid):
                stop.set()

    async def _generate(self, body: bytes, exchange: Exchange) -> None:
        try:
            asked = self._wire.read(json.loads(body))
        except (KeyError, TypeError, ValueError) as error:
            await _answer(exchange, 400, {"error": {"message": repr(error), "code": 400}})
            return
        self._write(asked)
        fault = self._next_faults.popleft() if self._next_faults else self._fault
        if fault is not None and fault.kind == "refuse":
            await _answer(exchange, fault.status, {"error": {"message": "refused by script"}})
            return
        try:
            plan = self._model.plan(asked.input_ids, asked.max_tokens)
        except NoReply as error:
            await _answer(exchange, 400, {"error": {"message": str(error), "code": 400}})
            return
        await self._watched(asked, plan, fault, exchange)

    async def _watched(
        self,
        asked: WireRequest,
        plan: ScriptedAnswer,
        fault: EngineFault | None,
        exchange: Exchange,
    ) -> None:
        """Streams the answer until it ends, is aborted, or the client is gone."""
        stop = self._running[asked.id] = asyncio.Event()
        watch = asyncio.create_task(_stop_when_gone(exchange, stop))
        try:
            await self._stream(asked, WireProgress(plan=plan), fault, stop, exchange)
        finally:
            watch.cancel()
            del self._running[asked.id]
            if stop.is_set():
                async with self._changed:
                    self._aborted.append(asked.id)
                    self._changed.notify_all()

    async def _stream(
        self,
        asked: WireRequest,
        progress: WireProgress,
        fault: EngineFault | None,
        stop: asyncio.Event,
        exchange: Exchange,
    ) -> None:
        plan = progress.plan
        kind = None if fault is None else fault.kind
        cuts = kind not in (None, "no logprobs", "echo")
        count = min(len(plan.ids), fault.after) if fault is not None and cuts else len(plan.ids)
        await exchange.start(200, b"text/event-stream")
        for start in range(0, count, self._chunk_tokens) or ([] if cuts else [0]):
            if await self._pause(stop):
                last = self._wire.event(asked, progress, start, "abort", None)
                await exchange.write(last, last=True)
                return
            end = min(start + self._chunk_tokens, count)
            progress.versions += [self._version] * (end - start)
            finish = plan.finish if end == count and not cuts else None
            quirk = None if cuts else kind
            await exchange.write(self._wire.event(asked, progress, start, finish, quirk))
        if cuts and fault is not None:
            await self._fail(asked, progress, fault, stop, exchange)
        await exchange.write(self._wire.tail(asked, progress), last=True)

    async def _fail(
        self,
        asked: WireRequest,
        progress: WireProgress,
        fault: EngineFault,
        stop: asyncio.Event,
        exchange: Exchange,
    ) -> None:
        start = len(progress.versions)
        if fault.kind == "die":
            raise ConnectionCut
        if fault.kind in ("hang", "stall"):
            async with self._changed:
                self._stalled.append(asked.id)
                self._changed.notify_all()
            await stop.wait()
        elif fault.kind == "abort":
            await exchange.write(self._wire.event(asked, progress, start, "abort", None))
        else:
            end = min(start + self._chunk_tokens, len(progress.plan.ids))
            progress.versions += [self._version] * (end - start)
            await exchange.write(self._wire.event(asked, progress, start, None, fault.kind))

    async def _pause(self, stop: asyncio.Event) -> bool:
        """Whether the request was stopped before the next tokens were due."""
        try:
            async with asyncio.timeout(self._chunk_delay_s):
                await stop.wait()
        except TimeoutError:
            return False
        return True

    def _write(self, asked: WireRequest) -> None:
        if self._log is not None:
            ids = memoryview(asked.input_ids).cast("i").tolist()
            line = {"id": asked.id, "input_ids": ids, "max_tokens": asked.max_tokens}
            # One write to a file opened for appending: it is whole in the file, or not there.
            os.write(self._log, json.dumps(line).encode() + b"\n")


async def _stop_when_gone(exchange: Exchange, stop: asyncio.Event) -> None:
    await exchange.gone()
    stop.set()


async def _answer(exchange: Exchange, status: int, data: object) -> None:
    await exchange.answer(status, json.dumps(data).encode())


def load_script(where: str) -> Script:
    """What `module:function` or `file.py:function` returns."""
    place, _, function = where.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location("gyre_script", place)
        if spec is None or spec.loader is None:
            raise SystemExit(f"--script {where}: expected a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    script = getattr(module, function)()
    if not isinstance(script, Script):
        raise SystemExit(f"--script {where}: expected a Script, found {type(script).__name__}")
    return script


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A scripted engine over HTTP.")
    parser.add_argument("--wire", choices=("sglang", "vllm"), required=True)
    parser.add_argument("--script", required=True, help="module:function or file.py:function")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ready-file", type=Path, help="gets {port, pid} once it listens")
    parser.add_argument("--log", type=Path, help="gets one line per ask")
    parser.add_argument("--version", type=int, default=0)
    parser.add_argument("--chunk-tokens", type=int, default=4)
    parser.add_argument("--chunk-delay-s", type=float, default=0.0)
    parser.add_argument("--incremental", action="store_true", help="SGLang: events are deltas")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    coder = FastCoder(Tokenizer.from_file(str(arguments.tokenizer)))
    wire: EngineWire = VllmWire()
    if arguments.wire == "sglang":
        wire = SglangWire(incremental=arguments.incremental)
    server = ScriptedServer(
        ScriptedModel(load_script(arguments.script), coder),
        wire,
        log=arguments.log,
        version=arguments.version,
        chunk_tokens=arguments.chunk_tokens,
        chunk_delay_s=arguments.chunk_delay_s,
    )
    listener = socket.create_server((arguments.host, arguments.port), backlog=1024)
    if arguments.ready_file is not None:
        ready = {"port": listener.getsockname()[1], "pid": os.getpid()}
        arguments.ready_file.write_text(json.dumps(ready) + "\n")
    config = uvicorn.Config(
        server, log_level="critical", access_log=False, lifespan="off", timeout_keep_alive=30
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
