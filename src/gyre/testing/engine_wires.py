"""The two wire formats in which a scripted engine answers over HTTP."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gyre.testing.script import ScriptedAnswer
from gyre.testing.scripted_engine import FaultKind

DONE = b"data: [DONE]\n\n"


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
        told: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        """The tokens told from `start` on, as one event, spoiled as the fault says."""
        ...

    def tail(self, asked: WireRequest, told: WireProgress) -> bytes:
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


def _values(told: WireProgress, start: int, fault: FaultKind | None) -> list[float]:
    values = told.plan.logprobs[start : len(told.versions)]
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
        told: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        end = len(told.versions)
        first = start if self._incremental else 0
        ids = told.plan.ids[first:end]
        values = told.plan.logprobs[first:start] + _values(told, start, fault)
        meta: dict[str, Any] = {
            "id": asked.id,
            "finish_reason": None if finish is None else {"type": finish},
            "prompt_tokens": len(asked.input_ids) // 4,
            "weight_version": str(told.versions[-1] if told.versions else 0),
            "completion_tokens": end,
            "weight_versions": _spans(told.versions),
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

    def tail(self, asked: WireRequest, told: WireProgress) -> bytes:
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
        told: WireProgress,
        start: int,
        finish: str | None,
        fault: FaultKind | None,
    ) -> bytes:
        ids = told.plan.ids[start : len(told.versions)]
        choice: dict[str, Any] = {"index": 0, "text": "x" * len(ids), "finish_reason": finish}
        if fault != "no ids":
            choice["token_ids"] = ids
        if asked.wants_logprobs and fault != "no logprobs":
            choice["logprobs"] = {"token_logprobs": _values(told, start, fault)}
        if asked.wants_echo and not told.echoed:
            told.echoed = True
            choice["prompt_token_ids"] = _echo(asked, fault)
        return _event({"id": f"cmpl-{asked.id}", "model": "scripted", "choices": [choice]}, fault)

    def tail(self, asked: WireRequest, told: WireProgress) -> bytes:
        usage = {
            "prompt_tokens": len(asked.input_ids) // 4,
            "completion_tokens": len(told.versions),
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
