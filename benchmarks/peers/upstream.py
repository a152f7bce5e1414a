"""A mock engine that answers at once and almost for free, in each format a peer may ask for.

Rule 1: nothing is rendered per call; every answer is bytes made at start-up.
Rule 2: the body is searched and never parsed, so its length costs this process little.
"""

import argparse
import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from benchmarks.peers.passthrough import Receive, Send, read_body
from benchmarks.peers.replies import NUM_REPLIES, Said, said
from tokenizers import Tokenizer

GENERATE_TOKENS = 32
"""Tokens per event of /generate, the stream_interval that a recorder asks an engine for."""
NO_PROMPT = b'"prompt_tokens":0'
MODELS = {"status": "ok", "data": [{"id": "policy", "object": "model"}]}
LOGPROB = -0.12345678
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canned:
    """One reply in every format, ready to be written but for what repeats the prompt."""

    chat: bytes
    chat_events: tuple[bytes, ...]
    generate: bytes
    generate_events: tuple[bytes, ...]


def canned(reply: Said, ids: list[int], chunk_tokens: int) -> Canned:
    """The reply in all formats, its chat stream cut every `chunk_tokens` tokens."""
    cuts = [*range(GENERATE_TOKENS, len(ids), GENERATE_TOKENS), len(ids)]
    return Canned(
        chat=orjson.dumps(_chat(reply, len(ids))),
        chat_events=tuple(_chat_events(reply, -(-len(ids) // chunk_tokens))),
        generate=orjson.dumps(_generate(ids, last=True)),
        generate_events=(
            *(_event(_generate(ids[:cut], last=cut == len(ids))) for cut in cuts),
            b"data: [DONE]\n\n",
        ),
    )


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _generate(ids: list[int], *, last: bool) -> dict[str, Any]:
    """SGLang's /generate answer; ids and log-probs of a stream repeat what came before."""
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "prompt_tokens": 0,
            "id": "mock",
            "finish_reason": {"type": "stop", "matched": ids[-1]} if last else None,
            "weight_version": "default",
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[LOGPROB, token, None] for token in ids],
        },
    }


def _message(reply: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.arguments is not None:
        call = {"name": "shell", "arguments": reply.arguments}
        message["tool_calls"] = [{"id": "call_mock", "type": "function", "function": call}]
    return message


def _chat(reply: Said, num_tokens: int) -> dict[str, Any]:
    finish = "stop" if reply.arguments is None else "tool_calls"
    return {
        "id": "chatcmpl-mock",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [{"index": 0, "message": _message(reply), "finish_reason": finish}],
        "usage": {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1},
    }


def _chat_events(reply: Said, num_chunks: int) -> list[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        head = {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 1}
        return _event(head | {"model": "policy", "choices": [choice]})

    size = -(-len(reply.text) // num_chunks)
    events = [chunk({"role": "assistant", "content": ""}, None)]
    for start in range(0, len(reply.text), size):
        events.append(chunk({"content": reply.text[start : start + size]}, None))
    if reply.arguments is not None:
        call = _message(reply)["tool_calls"][0] | {"index": 0}
        events.append(chunk({"tool_calls": [call]}, None))
    events.append(chunk({}, "stop" if reply.arguments is None else "tool_calls"))
    return [*events, b"data: [DONE]\n\n"]


class Upstream:
    """The ASGI application: replies in turn, after `delay_s`."""

    def __init__(self, replies: list[Canned], delay_s: float) -> None:
        self._replies = itertools.cycle(replies)
        self._delay_s = delay_s
        self._in_flight = 0
        self._peak = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected scope: {scope['type']}")
        path: str = scope["path"]
        if scope["method"] == "GET":
            await _whole(send, orjson.dumps(MODELS | {"peak": self._peak}))
            return
        body = await read_body(receive)
        streams = b'"stream":true' in body or b'"stream": true' in body
        if self._delay_s:
            self._in_flight += 1
            self._peak = max(self._peak, self._in_flight)
            await asyncio.sleep(self._delay_s)
            self._in_flight -= 1
        reply = next(self._replies)
        if path == "/generate":
            prompt = repeated_prompt(body)
            events = [event.replace(*prompt) for event in reply.generate_events]
            await _answer(send, reply.generate.replace(*prompt), events if streams else None)
        elif path.endswith("/chat/completions"):
            await _answer(send, reply.chat, reply.chat_events if streams else None)
        else:
            await _whole(send, b'{"error":"no such path"}', status=404)


def repeated_prompt(body: bytes) -> tuple[bytes, bytes]:
    """What to replace in an event, so that it repeats the prompt it was asked with."""
    start = body.index(b'"input_ids":[') + len(b'"input_ids":[')
    end = body.index(b"]", start)
    number = body.count(b",", start, end) + 1
    counted = b'"prompt_tokens":' + str(number).encode()
    if b'"return_prompt_token_ids":true' in body:
        # The echo stands at the top level, where SGLang puts it.
        echo = b'"prompt_token_ids":[' + body[start:end] + b"],"
        return b'"meta_info":{' + NO_PROMPT, echo + b'"meta_info":{' + counted
    return NO_PROMPT, counted


async def _answer(send: Send, whole: bytes, events: Sequence[bytes] | None) -> None:
    if events is None:
        await _whole(send, whole)
        return
    await send({"type": "http.response.start", "status": 200, "headers": SSE})
    for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole(send: Send, body: bytes, status: int = 200) -> None:
    headers = [*JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--tools", action="store_true", help="every reply calls a tool")
    parser.add_argument("--chunk-tokens", type=int, default=1, help="tokens per event of a chat")
    parser.add_argument("--delay-s", type=float, default=0.0, help="pause before each reply")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    replies = []
    for position in range(NUM_REPLIES):
        reply = said(position, tools=args.tools)
        ids = tokenizer.encode(reply.sampled, add_special_tokens=False).ids
        replies.append(canned(reply, ids, args.chunk_tokens))
    uvicorn.run(
        Upstream(replies, args.delay_s),
        port=args.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        lifespan="off",
        backlog=4096,
    )


if __name__ == "__main__":
    main()
