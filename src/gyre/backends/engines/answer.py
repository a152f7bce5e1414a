"""What an engine says is checked before any of it counts as sampled (SPEC 4.1)."""

import math
from collections.abc import Sequence

from gyre.words.errors import EngineError

LARGEST_ID = 2**31 - 1


def check(
    engine: str, ids: Sequence[int], logprobs: Sequence[float | None] | None
) -> list[float] | None:
    """The log-probabilities, all finite and one per id, or None when there are none at all.

    Anything else is garbage, of which nothing may be kept.
    """
    if ids and not 0 <= min(ids) <= max(ids) <= LARGEST_ID:
        raise EngineError(f"engine {engine}: an output id outside 0..{LARGEST_ID}")
    if logprobs is None:
        return None
    if len(logprobs) != len(ids):
        raise EngineError(
            f"engine {engine}: {len(logprobs)} log-probabilities for {len(ids)} output ids"
        )
    given = [value for value in logprobs if value is not None]
    if len(given) != len(ids) or not math.isfinite(math.fsum(given)):
        raise EngineError(f"engine {engine}: a log-probability that is not a finite number")
    return given


def version(said: str | int | None) -> int | None:
    """The weights version as a number; engines that were never told one say "default"."""
    if isinstance(said, str):
        return int(said) if said.isascii() and said.isdigit() else None
    return said
