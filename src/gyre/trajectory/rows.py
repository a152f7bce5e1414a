"""A drawn trajectory as arrays: ids, target positions, behaviour log-probabilities, versions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre.trajectory.arena import Ids, Logprobs
from gyre.trajectory.draw import Trajectory, counts
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.ids import CallId
from gyre.types.roles import CallRole


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
    known = [one for one in versions if one is not None]
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
