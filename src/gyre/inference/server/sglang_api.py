"""SGLang's /generate in token ids, each event with only what is new."""

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
from gyre.types.sampling import GenerateRequest, SamplingParams


class SglangSamplingParams(NeutralSettings):
    """How tokens are drawn, in SGLang's words and with its defaults."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Id] | None = None
    ignore_eos: bool = False
    min_new_tokens: int = 0
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None


class GenerateBody(msgspec.Struct):
    """The body of a request; fields beyond these are not looked at."""

    input_ids: list[Id] | None = None
    text: str | None = None
    sampling_params: SglangSamplingParams = msgspec.field(default_factory=SglangSamplingParams)
    rid: str | None = None
    stream: bool = False
    return_logprob: bool = False
    return_prompt_token_ids: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: list[int] | None = None
    return_hidden_states: bool = False
    lora_path: str | None = None


class SglangRequest:
    """One request of SGLang's /generate, and how it is answered."""

    def __init__(self, body: bytes, served: ServedModel, fresh_id: str) -> None:
        asked = read(body, GenerateBody)
        _refuse(asked)
        params = asked.sampling_params
        stop_ids = tuple(params.stop_token_ids or ())
        ids = asked.input_ids if asked.text is None else asked.text
        self.ask = GenerateRequest(
            id=asked.rid or fresh_id,
            input_ids=prompt(served, "input_ids" if asked.text is None else "text", ids),
            sampling=SamplingParams(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=top_k("sampling_params.top_k", params.top_k),
                max_tokens=(
                    served.context_tokens
                    if params.max_new_tokens is None
                    else params.max_new_tokens
                ),
                stop_ids=stop_ids if params.ignore_eos else stop_ids + served.end_ids,
                stop=strings(params.stop),
                seed=params.sampling_seed,
            ),
            execution="",
        )
        self.is_stream = asked.stream
        self.output = OutputStream(
            self.ask,
            served.tokenizer,
            skip_special=params.skip_special_tokens,
            show_stop=params.no_stop_trim,
        )
        self._asked = asked

    def data(self, piece: OutputPiece) -> Mapping[str, Any]:
        """The piece as an event, or the whole output as an answer."""
        output = self.output
        meta: dict[str, Any] = {
            "id": self.ask.id,
            "finish_reason": self._finish(piece),
            "prompt_tokens": output.num_prompt,
            "completion_tokens": output.num_tokens,
            "weight_version": output.spans[-1].version if output.spans else None,
            "weight_versions": output.spans,
        }
        if self._asked.return_logprob:
            pairs = zip(piece.logprobs, piece.ids, strict=True)
            meta["output_token_logprobs"] = [(value, token, None) for value, token in pairs]
        data: dict[str, Any] = {"text": piece.text, "output_ids": piece.ids, "meta_info": meta}
        if self._asked.return_prompt_token_ids and piece.prompt_ids is not None:
            data["prompt_token_ids"] = piece.prompt_ids
        return data

    def answer(self, piece: OutputPiece) -> Mapping[str, Any]:
        return self.data(piece)

    def tail(self) -> bytes:
        """What follows the last event."""
        return DONE

    def _finish(self, piece: OutputPiece) -> Mapping[str, Any] | None:
        match piece.finish:
            case None:
                return None
            case "stop":
                return {"type": "stop", "matched": self.output.matched}
            case "length":
                return {"type": "length", "length": self.output.num_tokens}
            case other:
                return {"type": other, "message": "ended by an order"}


def _refuse(asked: GenerateBody) -> None:
    """Raises RequestError for what would be answered with something else than was asked for."""
    params = asked.sampling_params
    params.refuse_others("sampling_params.")
    if asked.input_ids is not None and asked.text is not None:
        refuse("text", "text or input_ids, not both", "both")
    if params.min_new_tokens:
        refuse("sampling_params.min_new_tokens", "0", params.min_new_tokens)
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        if getattr(params, name) is not None:
            refuse(f"sampling_params.{name}", "none: output is not constrained", "one")
    if asked.logprob_start_len not in (None, -1):
        found = asked.logprob_start_len
        refuse("logprob_start_len", "-1: log-probabilities are of the output", found)
    for name in ("top_logprobs_num", "token_ids_logprob", "return_hidden_states", "lora_path"):
        if getattr(asked, name):
            refuse(name, "none", getattr(asked, name))
