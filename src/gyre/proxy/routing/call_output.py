"""What was sampled for one call so far, over however many engines (T07)."""

from dataclasses import replace

from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, Output, SamplingParams, Span


class CallOutput:
    """Tokens of one call in order, each with its log-probability, engine and version."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self._logprobs: list[float] = []
        self._lacking = False
        self._spans: list[Span] = []
        self._echo: list[int] | None = None
        self._finish: str | None = None
        self.ids: list[int] = []

    @property
    def finish(self) -> str | None:
        """Why the call has ended; None while there is more to sample.

        An engine that vanished after the last token took its own finish with it.
        """
        if self._finish is not None:
            return self._finish
        if self.ids and self.ids[-1] in self._sampling.stop_ids:
            return "stop"
        return "length" if len(self.ids) >= self._sampling.max_tokens else None

    @property
    def rest(self) -> SamplingParams:
        """The sampling of what is still missing.

        A seed moves on with the tokens: used twice, it would draw the same numbers again.
        """
        if not self.ids:
            return self._sampling
        seed = self._sampling.seed
        return replace(
            self._sampling,
            max_tokens=self._sampling.max_tokens - len(self.ids),
            seed=None if seed is None else seed + len(self.ids),
        )

    def take(self, engine: EngineName, chunk: Chunk) -> None:
        """Adds the chunk, or refuses it whole."""
        if chunk.logprobs is not None and len(chunk.logprobs) != len(chunk.ids):
            raise EngineError(
                f"engine {engine}: {len(chunk.logprobs)} log-probabilities for {len(chunk.ids)} ids"
            )
        if len(self.ids) + len(chunk.ids) > self._sampling.max_tokens:
            raise EngineError(f"engine {engine}: more than {self._sampling.max_tokens} tokens")
        if chunk.prompt_ids is not None and not self.ids:
            # Later echoes hold what was sampled elsewhere as well.
            self._echo = chunk.prompt_ids
        if chunk.ids:
            self._span(engine, chunk)
            self.ids += chunk.ids
            if chunk.logprobs is None:
                self._lacking = True
            else:
                self._logprobs += chunk.logprobs
        if chunk.finish in ("stop", "length"):
            self._finish = chunk.finish

    def _span(self, engine: EngineName, chunk: Chunk) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.engine, last.version) == (engine, chunk.version):
            self._spans[-1] = replace(last, tokens=last.tokens + len(chunk.ids))
        else:
            self._spans.append(Span(engine=engine, version=chunk.version, tokens=len(chunk.ids)))

    def output(self, *, engine_s: float, attempts: int) -> Output:
        """Everything sampled so far; "abort" as long as there was more to come (T08)."""
        finish = self.finish
        return Output(
            ids=list(self.ids),
            logprobs=None if self._lacking else list(self._logprobs),
            spans=tuple(self._spans),
            finish="abort" if finish is None else finish,
            echo=self._echo,
            engine_s=engine_s,
            attempts=attempts,
        )
