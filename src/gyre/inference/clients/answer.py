"""What an engine says is checked before any of it counts as sampled (SPEC 4.1)."""

from collections.abc import Sequence

from gyre.types.errors import EngineError

LARGEST_ID = 2**31 - 1
LARGEST = 3.4e38
"""As records hold log-probabilities, in 32 bits."""
MOST_DIGITS = 18
"""Of a version."""


def check(
    engine: str, ids: Sequence[int], logprobs: Sequence[float | None] | None
) -> list[float] | None:
    """The log-probabilities, all finite and one per id, or None when there are none at all.

    Anything else is garbage, of which nothing may be kept.
    """
    if not _are_ids(ids):
        raise EngineError(f"engine {engine}: an output id outside 0..{LARGEST_ID}")
    if logprobs is None:
        return None
    if len(logprobs) != len(ids):
        raise EngineError(
            f"engine {engine}: {len(logprobs)} log-probabilities for {len(ids)} output ids"
        )
    given = [value for value in logprobs if value is not None]
    # Compared one by one, because a sum overflows, and what is no number compares with nothing.
    if len(given) != len(ids) or not all(-LARGEST <= value <= LARGEST for value in given):
        raise EngineError(f"engine {engine}: a log-probability that is not a finite number")
    return given


def check_echo(engine: str, ids: Sequence[int] | None) -> None:
    """What the engine says it was sent can be compared with what it was."""
    if ids is not None and not _are_ids(ids):
        raise EngineError(f"engine {engine}: an echoed id outside 0..{LARGEST_ID}")


def version(said: str | int | None) -> int | None:
    """The weights version as a number; engines that were never told one say "default"."""
    if isinstance(said, str):
        is_number = said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS
        return int(said) if is_number else None
    return said if said is None or 0 <= said < 10**MOST_DIGITS else None


def _are_ids(ids: Sequence[int]) -> bool:
    return not ids or 0 <= min(ids) <= max(ids) <= LARGEST_ID
