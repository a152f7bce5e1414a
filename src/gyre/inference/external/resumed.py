"""One call over as many requests as its server needs for it, each going on where the last ended."""

from array import array
from dataclasses import replace

from gyre.types.sampling import Chunk, GenerateRequest


class ContinuedRequest:
    """What was asked, what was sampled for it so far, and the request that is under way."""

    def __init__(self, ask: GenerateRequest) -> None:
        self._ask = ask
        self._sampled = array("i")
        self._num_requests = 0
        self._is_echoed = False
        self.is_wanted = True
        """Whether anybody waits for more."""
        self.is_cut = False
        """Whether its request was ended so that another can go on."""
        self.is_over = False

    @property
    def request(self) -> str:
        """The id of the request that is under way."""
        return f"{self._ask.id}.{self._num_requests}"

    def rest(self) -> GenerateRequest:
        """What the next request has to ask for."""
        self.is_cut = False
        self._num_requests += 1
        sampling, num_sampled = self._ask.sampling, len(self._sampled)
        return replace(
            self._ask,
            id=self.request,
            input_ids=self._ask.input_ids + self._sampled.tobytes(),
            sampling=replace(
                sampling,
                max_tokens=sampling.max_tokens - num_sampled,
                # Used twice, a seed would draw the same numbers again.
                seed=None if sampling.seed is None else sampling.seed + num_sampled,
            ),
        )

    def take(self, chunk: Chunk) -> Chunk:
        """The chunk as it is of the whole call, which a request that was cut does not end."""
        self._sampled.extend(chunk.ids)
        echo = None if self._is_echoed else chunk.prompt_ids
        if echo is not None:
            self._is_echoed = True
            echo = echo[: len(self._ask.input_ids) // 4]
        goes_on = chunk.finish == "abort" and self.is_cut and self.is_wanted
        finish = self._whole() if goes_on else chunk.finish
        self.is_over = finish is not None
        return replace(chunk, prompt_ids=echo, finish=finish)

    def _whole(self) -> str | None:
        """Why there is nothing left to ask for, although the request was cut; None if there is."""
        sampling = self._ask.sampling
        if self._sampled and self._sampled[-1] in sampling.stop_ids:
            return "stop"
        return "length" if len(self._sampled) >= sampling.max_tokens else None
