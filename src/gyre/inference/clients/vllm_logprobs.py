"""Whether a vLLM server's log-probabilities are of the distribution it samples from (T28).

By default vLLM reports them as the model gave them, before temperature, top-p and top-k; only with
`--logprobs-mode processed_logprobs` are they those of the draw. The mode is the server's and no
request can set it, so a server is asked for one token of which the two modes say different things.
"""

import asyncio
import logging

import msgspec

from gyre.inference.clients.wire import EngineHttp, decoded, refusal
from gyre.types.sampling import SamplingParams

RULED_OUT = -1_000.0
"""vLLM writes -9999 for a token that could not be drawn; a model's own values stay far above."""
_PROBE = msgspec.json.encode(
    # With top_k=1 a second token is impossible if the draw is told, and likely enough if not.
    {
        "prompt": [0],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "min_p": 0.0,
        "logprobs": 2,
    }
)

_log = logging.getLogger(__name__)


class _Logprobs(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_COMPLETION = msgspec.json.Decoder(_Completion)


def is_plain(sampling: SamplingParams) -> bool:
    """Whether both modes say the same: nothing is scaled or left out, or nothing is drawn."""
    if sampling.temperature == 0.0:
        return True
    return (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, None)


class LogprobsMode:
    """What one server was found to report; asked when first needed, and again after a failure."""

    def __init__(self, wire: EngineHttp) -> None:
        self._wire = wire
        self._of_the_draw: bool | None = None
        self._asking = asyncio.Lock()

    async def tells_draw(self, sampling: SamplingParams) -> bool:
        """Whether what it reports under these settings is of the distribution sampled from."""
        if is_plain(sampling):
            return True
        async with self._asking:
            if self._of_the_draw is None:
                self._of_the_draw = await self._ask()
            return self._of_the_draw

    def forget(self) -> None:
        """The server failed, and what comes back at its address may be started differently."""
        self._of_the_draw = None

    async def _ask(self) -> bool:
        status, text = await self._wire.post("/v1/completions", _PROBE)
        if status != 200:
            refused = refusal(self._wire.name, status, text.decode(errors="replace"))
            if refused.retryable:
                raise refused
        elif min(self._values(text), default=0.0) < RULED_OUT:
            return True
        # Also where the server is not allowed to answer, because then nothing is known of it.
        _log.warning(
            "engine %s: its log-probabilities leave temperature, top-p and top-k out, so none are"
            " recorded; start vLLM with --logprobs-mode processed_logprobs",
            self._wire.name,
        )
        return False

    def _values(self, text: bytes) -> list[float]:
        return [
            value
            for choice in decoded(self._wire.name, _COMPLETION, text).choices
            for token in choice.logprobs.top_logprobs
            for value in token.values()
        ]
