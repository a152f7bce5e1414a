"""Which trajectories of an execution are trained, and which tokens in each (SPEC 7.2)."""

from dataclasses import dataclass
from random import Random

from gyre.trajectory.tree import CallNode, Tree
from gyre.types.ids import ROOT, CallId, ExecutionId
from gyre.types.roles import PRIORITY


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
