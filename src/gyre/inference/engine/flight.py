"""A pass on its way through the device, and the tokens that come back from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyre.inference.engine.request import Request
from gyre.inference.engine.sampler import BatchSampling, uniforms
from gyre.inference.engine.scheduler import ScheduledPass


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The values, by a copy that does not wait for the passes on their way."""
    held = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return held.to(device, non_blocking=True)


class SampledTokens:
    """Ids and log-probabilities of S rows; the ids stay on the device for the pass that follows."""

    def __init__(self, ids: Tensor, numbers_S2: Tensor) -> None:
        self.ids = ids
        self._numbers_S2 = numbers_S2
        self._arrived: torch.cuda.Event | None = None
        if numbers_S2.is_cuda:
            held = torch.empty(numbers_S2.shape, dtype=torch.float64, pin_memory=True)
            self._numbers_S2 = held.copy_(numbers_S2, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> tuple[list[int], list[float]]:
        """The numbers, once this pass is done; those launched after it go on."""
        if self._arrived is not None:
            self._arrived.synchronize()
        ids, logprobs = self._numbers_S2.T.tolist()
        return list(map(int, ids)), logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightPass:
    """A launched pass."""

    turn: ScheduledPass
    requests: list[Request]
    """Of all parts."""
    wanting: list[Request]
    """Those that get a token."""
    version: int
    """Of the weights that it was launched with."""
    drawn: SampledTokens | None
    """None where nobody wants a token yet."""


def draws_for(
    requests: Sequence[Request], *, num_unknown: int, vocabulary: int, device: torch.device
) -> BatchSampling:
    """How each request's next token is drawn, `num_unknown` tokens after those it has."""
    return BatchSampling.of(
        [request.way for request in requests],
        uniforms([request.seed_after(num_unknown) for request in requests]),
        vocabulary,
        pinned=device.type == "cuda",
    )
