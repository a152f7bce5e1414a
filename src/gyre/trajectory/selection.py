"""Which trajectories are trained (J_max draw) and their rows as arrays."""

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.tree import CallNode, Ids, Logprobs, Tree
from gyre.types.call_records import PRIORITY, CallRole
from gyre.types.ids import ROOT, CallId, ExecutionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A path from the root to a leaf, with the calls whose outputs are its targets."""

    leaf: CallId
    targets: tuple[CallId, ...]
    """Calls on the path that no earlier draw had taken, in path order."""
    num_targets: int


def generator(seed: int, execution: ExecutionId) -> Random:
    """The randomness of one execution's draw, so that it can be replayed."""
    return Random(f"{seed}/{execution}")


def select_trajectories(
    tree: Tree, rng: Random, *, max_trajectories: int | None = 5
) -> list[Trajectory]:
    """Up to `max_trajectories` (J_max; None means all) with disjoint targets."""
    paths = [(leaf, counts(tree, leaf)) for leaf in tree.leaves()]
    masked: set[CallId] = set()
    drawn: list[Trajectory] = []
    while max_trajectories is None or len(drawn) < max_trajectories:
        weighted = _highest_class(paths, masked)
        if not weighted:
            break
        ((leaf, path),) = rng.choices(
            [one for one, _ in weighted], [unmasked for _, unmasked in weighted]
        )
        free = {call: count for call, count in path.items() if count and call not in masked}
        drawn.append(Trajectory(leaf=leaf.id, targets=tuple(free), num_targets=sum(free.values())))
        masked.update(path)
    return drawn


_Path = tuple[CallNode, dict[CallId, int]]


def _highest_class(paths: list[_Path], masked: set[CallId]) -> list[tuple[_Path, int]]:
    """Leaves of the first class that still has unmasked trainable tokens, with their counts."""
    for role in PRIORITY:
        weighted = [
            ((leaf, path), unmasked)
            for leaf, path in paths
            if leaf.role == role
            and (unmasked := sum(n for call, n in path.items() if call not in masked))
        ]
        if weighted:
            return weighted
    return []


def counts(tree: Tree, leaf: CallNode) -> dict[CallId, int]:
    """Trainable output tokens of each call on the path to `leaf`, root first.

    A token that the next turn trims away (T05) is not on the path, so it is no target there.
    """
    found: dict[CallId, int] = {}
    at, trimmed = leaf.segment, 0
    while at != ROOT:
        segment = tree.segments[at]
        if segment.call is not None:
            node = tree.calls[segment.call]
            kept = min(node.num_committed, max(0, node.num_output - trimmed))
            found[node.id] = kept if node.is_trainable else 0
        at, trimmed = segment.parent, segment.trim
    return dict(reversed(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training sequence; T tokens of which M are targets."""

    leaf: CallId
    role: CallRole
    ids: Ids
    """T: exactly what engines saw and said along the path."""
    targets: NDArray[np.int32]
    """M: positions in `ids` that carry loss, increasing."""
    logprobs: Logprobs
    """M: log-probability of each target when it was sampled."""
    versions: NDArray[np.int32] | None
    """M: weights version that sampled each target; None where an engine did not say."""


def row(tree: Tree, trajectory: Trajectory) -> Row:
    """The arrays of one trajectory, copied out of the tree."""
    leaf = tree.calls[trajectory.leaf]
    cut = leaf.num_output - leaf.num_committed
    ids = tree.path_ids(leaf.segment)
    on_path = counts(tree, leaf)
    positions: list[NDArray[np.int32]] = []
    logprobs: list[Logprobs] = []
    versions: list[NDArray[np.int32] | None] = []
    for call in trajectory.targets:
        node = tree.calls[call]
        segment = tree.segments[node.segment]
        kept = on_path[call]
        first = segment.end - node.num_output
        positions.append(np.arange(first, first + kept, dtype=np.int32))
        logprobs.append(tree.output_logprobs(call)[:kept])
        versions.append(_versions(node, kept))
    known = [version for version in versions if version is not None]
    return Row(
        leaf=leaf.id,
        role=leaf.role,
        ids=ids[: len(ids) - cut].copy(),
        targets=np.concatenate(positions) if positions else np.empty(0, dtype=np.int32),
        logprobs=np.concatenate(logprobs) if logprobs else np.empty(0, dtype=np.float32),
        versions=np.concatenate(known) if known and len(known) == len(versions) else None,
    )


def _versions(node: CallNode, kept: int) -> NDArray[np.int32] | None:
    spans = [(span.version, span.tokens) for span in node.spans]
    if any(version is None for version, _ in spans):
        return None
    values = np.array([version for version, _ in spans], dtype=np.int32)
    return np.repeat(values, [tokens for _, tokens in spans])[:kept]
