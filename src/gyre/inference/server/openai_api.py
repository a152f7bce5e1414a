"""OpenAI's /v1/completions for one choice, with the token ids that vLLM adds to it."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gyre.inference.server.protocol import (
    DONE,
    Id,
    NeutralSettings,
    OutputPiece,
    OutputStream,
    ServedModel,
    prompt,
    read,
    refuse,
    strings,
    top_k,
)
from gyre.net.sse import unnamed
from gyre.types.errors import RequestError
from gyre.types.sampling import GenerateRequest, SamplingParams

MAX_TOKENS = 16
"""What OpenAI gives a request that does not say."""


class StreamOptions(msgspec.Struct):
    """What a stream says besides its text."""

    include_usage: bool = False


class CompletionBody(NeutralSettings):
    """The body of a request; fields beyond these are not looked at."""

    prompt: Any = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Id] | None = None
    seed: int | None = None
    logprobs: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    best_of: int | None = None
    suffix: str | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool | None = False
    request_id: str | None = None
    prompt_logprobs: int | None = None


class CompletionRequest:
    """One request of OpenAI's completions, and how it is answered."""

    def __init__(self, body: bytes, served: ServedModel, fresh_id: str) -> None:
        asked = read(body, CompletionBody)
        _refuse(asked)
        stop_ids = tuple(asked.stop_token_ids or ())
        self.ask = GenerateRequest(
            id=asked.request_id or fresh_id,
            input_ids=prompt(served, "prompt", _single(asked.prompt)),
            sampling=SamplingParams(
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                top_k=top_k("top_k", asked.top_k),
                max_tokens=MAX_TOKENS if asked.max_tokens is None else asked.max_tokens,
                stop_ids=stop_ids if asked.ignore_eos else stop_ids + served.end_ids,
                stop=strings(asked.stop),
                seed=asked.seed,
            ),
            execution="",
        )
        self.is_stream = bool(asked.stream)
        self.output = OutputStream(
            self.ask,
            served.tokenizer,
            skip_special=asked.skip_special_tokens,
            show_stop=asked.include_stop_str_in_output,
        )
        self._asked = asked
        self._name = served.name
        self._created_s = int(time.time())
        self._offset = 0

    def data(self, piece: OutputPiece) -> Mapping[str, Any]:
        """The piece as an event."""
        choice: dict[str, Any] = {
            "index": 0,
            "text": piece.text,
            "logprobs": None if self._asked.logprobs is None else self._logprobs(piece),
            "finish_reason": piece.finish,
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = piece.ids
            if piece.prompt_ids is not None:
                choice["prompt_token_ids"] = piece.prompt_ids
        return self._about([choice])

    def answer(self, piece: OutputPiece) -> Mapping[str, Any]:
        """The whole output."""
        return {**self.data(piece), "usage": self._usage()}

    def tail(self) -> bytes:
        """What follows the last event."""
        options = self._asked.stream_options
        if options is None or not options.include_usage:
            return DONE
        return unnamed({**self._about([]), "usage": self._usage()}) + DONE

    def _about(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.ask.id}",
            "object": "text_completion",
            "created": self._created_s,
            "model": self._name,
            "choices": choices,
        }

    def _usage(self) -> Mapping[str, int]:
        output = self.output
        return {
            "prompt_tokens": output.num_prompt,
            "completion_tokens": output.num_tokens,
            "total_tokens": output.num_prompt + output.num_tokens,
        }

    def _logprobs(self, piece: OutputPiece) -> Mapping[str, Any]:
        tokens = [self.output.spelled(token) for token in piece.ids]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": piece.logprobs,
            "top_logprobs": None,
            "text_offset": offsets,
        }


def _single(given: Any) -> str | list[int]:
    """The one prompt there is, however it is wrapped."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return given
    try:
        return msgspec.convert(given, list[Id])
    except msgspec.ValidationError as error:
        message = f"expected one text or one list of ids: {error}"
        raise RequestError(message, where="prompt") from error


def _refuse(asked: CompletionBody) -> None:
    """Raises RequestError for what would be answered with something else than was asked for."""
    asked.refuse_others()
    if asked.logprobs not in (None, 0, 1):
        refuse("logprobs", "0 or 1: only that of the sampled token is known", asked.logprobs)
    if asked.best_of not in (None, 1):
        refuse("best_of", "1", asked.best_of)
    for name in ("echo", "suffix", "min_tokens", "prompt_logprobs"):
        if getattr(asked, name):
            refuse(name, "none", getattr(asked, name))
