"""An execution shaped like the paper's case study: ten paths under two system prompts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.selection import Row
from gyre.types.call_records import CallRole
from gyre.types.ids import CallId

SYSTEM_TOKENS = 4_000
MESSAGE_TOKENS = 75
"""About a quarter of what a coding agent's have, so that the longest path has 26k tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A leaf: the messages it shares with another path, and its own."""

    role: CallRole
    root: int
    begins_like: int | None
    """Index of an earlier path; None for the system prompt alone."""
    shared: int
    own: int


PATHS = (
    Path(role="main", root=0, begins_like=None, shared=0, own=169),
    Path(role="main-summary", root=0, begins_like=0, shared=168, own=2),
    Path(role="main", root=0, begins_like=None, shared=0, own=292),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=194),
    Path(role="sub-agent-summary", root=1, begins_like=3, shared=193, own=2),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=149),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=52),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=201),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=142),
    Path(role="sub-agent", root=1, begins_like=None, shared=0, own=142),
)
"""With the system prompts 1,347 messages, and 1,716 when every path is laid alone: a prefix of 168
and one of 193 messages fork into a reply and a summary, and what follows a summary begins anew.
Where the trace does not tell a path's length, it is such that the sums are right."""

ADMITTED = (0, 2, 1, 7, 3)
"""What five draws take: both main paths, the main summary, the two longest sub-agents."""

Ids = NDArray[np.int32]


def rows(chosen: tuple[int, ...], seed: int = 0) -> list[Row]:
    """Rows of the chosen paths; every second message is the policy's, each a target once."""
    rng = np.random.default_rng(seed)
    systems = [rng.integers(0, 150_000, SYSTEM_TOKENS, dtype=np.int32) for _ in range(2)]
    messages: list[list[Ids]] = []
    for path in PATHS:
        start = [] if path.begins_like is None else messages[path.begins_like][: path.shared]
        sizes = rng.lognormal(np.log(MESSAGE_TOKENS) - 0.5, 1.0, path.own).astype(int) + 1
        messages.append([*start, *(rng.integers(0, 150_000, n, dtype=np.int32) for n in sizes)])
    taken: set[int] = set()
    found = []
    for index in chosen:
        targets, at = [], SYSTEM_TOKENS
        for number, message in enumerate(messages[index]):
            if number % 2 and id(message) not in taken:
                taken.add(id(message))
                targets.append(np.arange(at, at + len(message), dtype=np.int32))
            at += len(message)
        positions = np.concatenate(targets)
        found.append(
            Row(
                leaf=CallId(index),
                role=PATHS[index].role,
                ids=np.concatenate([systems[PATHS[index].root], *messages[index]]),
                targets=positions,
                logprobs=np.full(len(positions), -5.0, dtype=np.float32),
                versions=None,
            )
        )
    return found
