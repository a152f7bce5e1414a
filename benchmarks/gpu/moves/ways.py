"""What each move must carry over which way at least, and so how long it must take at least."""

from collections.abc import Mapping

Bytes = Mapping[str, int]
"""Of one size of model: weights, optimizer state, a token's keys and values."""
Speeds = Mapping[str, float]
"""Bytes per second by way."""
UP, DOWN, DISK = "host to device", "device to host", "disk, durable"
THERE = "device memory"


def floor_s(
    what: str, sizes: Bytes, speeds: Speeds, carried: int = 0, *, lent: bool = False
) -> float | None:
    """Seconds of the copies alone, each at the full speed of its way; None where nothing is said.

    `carried` is what the move says it carried, where that is not of the model; what is lent is read
    and written in the device's own memory.
    """
    if UP not in speeds:
        return None
    weights, state = sizes["weight_bytes"], sizes["state_bytes"]
    ways: dict[str, Mapping[str, int]] = {
        "to training, core": {UP: state},
        # Out of the core's device and into the satellite's.
        "to training, satellite": {THERE: 2 * weights} if lent else {DOWN: weights, UP: weights},
        "to rollout, core": {DOWN: state},
        "to rollout, satellite with weights": {UP: weights},
        # Into the devices of both engines, over one bus.
        "publication": {DISK: weights, UP: 2 * weights},
        "hand-off": {THERE: 2 * carried} if lent else {DOWN: carried, UP: carried},
    }
    found = next((way for start, way in ways.items() if what.startswith(start)), None)
    if found is None:
        return None
    return sum(count / speeds[way] for way, count in found.items())
