"""Group-relative advantages from the rewards of a group (SPEC 8.1)."""

from collections.abc import Sequence
from fractions import Fraction
from math import copysign, isfinite, sqrt

from gyre.types.errors import InternalError


def advantages(rewards: Sequence[float | None], *, divide_by_std: bool) -> list[float | None]:
    """Each execution's reward against its group: exactly zero for all when all are equal.

    None is an excluded execution: it is out of mean and deviation, and has no advantage. With
    fewer than two rewards there is nothing to compare, and they get zero. The arithmetic is exact
    until the last rounding, so neither order nor scale matters.
    """
    valid = [reward for reward in rewards if reward is not None]
    if not all(isfinite(reward) for reward in valid):
        raise InternalError(f"advantages: rewards are {valid}")
    if len(valid) < 2 or max(valid) == min(valid):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = sum(map(Fraction, valid)) / len(valid)
    variance = sum((Fraction(reward) - mean) ** 2 for reward in valid) / len(valid)
    found: list[float | None] = []
    for reward in rewards:
        if reward is None:
            found.append(None)
            continue
        over = Fraction(reward) - mean
        scaled = copysign(sqrt(over * over / variance), over)
        found.append(scaled if divide_by_std else float(over))
    return found
