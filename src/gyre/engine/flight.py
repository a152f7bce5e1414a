"""A pass on its way through the device, and the tokens that come back from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyre.engine.batch import Turn
from gyre.engine.request import Request
from gyre.engine.sampler import Draws, sample


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The values, by a copy that does not wait for the passes on their way."""
    held = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return held.to(device, non_blocking=True)


class Drawn:
    """Ids and log-probabilities of S rows; the ids stay on the device for the pass that follows."""

    def __init__(self, logits_SV: Tensor, draws: Draws) -> None:
        self.ids, logprobs = sample(logits_SV, draws)
        # One copy back: float64 holds ids and log-probabilities exactly.
        self._numbers = torch.stack([self.ids.double(), logprobs.double()])
        self._arrived: torch.cuda.Event | None = None
        if self._numbers.is_cuda:
            held = torch.empty(self._numbers.shape, dtype=torch.float64, pin_memory=True)
            self._numbers = held.copy_(self._numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> tuple[list[int], list[float]]:
        """The numbers, once this pass is done; those launched after it go on."""
        if self._arrived is not None:
            self._arrived.synchronize()
        ids, logprobs = self._numbers.tolist()
        return [int(one) for one in ids], logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A launched pass."""

    turn: Turn
    requests: list[Request]
    """Of all parts."""
    wanting: list[Request]
    """Those that get a token."""
    version: int
    """Of the weights that it was launched with."""
    drawn: Drawn | None
    """None where nobody wants a token yet."""


def draws_for(
    requests: Sequence[Request], *, num_unknown: int, vocabulary: int, device: torch.device
) -> Draws:
    """How each request's next token is drawn, `num_unknown` tokens after those it has."""
    asked = [request.ask.sampling for request in requests]
    top_k = [min(one.top_k or vocabulary, vocabulary) for one in asked]
    numbers = [
        [one.temperature for one in asked],
        [one.top_p for one in asked],
        top_k,
        [request.uniform_after(num_unknown) for request in requests],
    ]
    temperature, top_p, kept, uniform = on_device(numbers, device, torch.float64)
    return Draws(
        temperature=temperature,
        top_p=top_p,
        top_k=kept.long(),
        uniform=uniform,
        is_cut=any(k < vocabulary for k in top_k) or any(one.top_p < 1 for one in asked),
        is_greedy=any(one.temperature == 0 for one in asked),
    )
