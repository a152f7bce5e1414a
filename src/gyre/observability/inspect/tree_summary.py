"""An execution in numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.selection import counts, generator, select_trajectories
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.call_records import PRIORITY, CallRole
from gyre.types.ids import ROOT, CallId, ExecutionId, SegmentId

MAX_TRAJECTORIES = 5
SEED = 0
"""The draw that a listing of leaves shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShare:
    """What one call added to its tree."""

    segments: tuple[SegmentId, ...]
    """New with this call, its sampled one last."""
    shared_tokens: int
    """Tokens at the beginning of its prompt that the tree held before."""
    new_tokens: int
    """The rest of its prompt."""
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A leaf, and what a draw with the default settings does with it."""

    call: CallId
    role: CallRole
    agent: str | None
    tokens: int
    """On its path, as far as it is committed."""
    targets: int
    """Trainable tokens among them, whether or not an earlier draw takes them."""
    drawn: int | None
    """Its place in the draw, from 1; None when it is not drawn."""
    drawn_targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSummary:
    """One execution at a glance."""

    execution: str
    model: str | None
    renderer: str | None
    calls: int
    committed: int
    failed: int
    unfinished: int
    complete: bool
    """Whether the end of every accepted request is known (M21)."""
    sealed: bool
    roots: int
    leaves: dict[str, int]
    """By role, highest class first."""
    unique_tokens: int
    sent_tokens: int
    """Of all prompts, each counted whole."""
    output_tokens: int
    targets: int
    """Tokens that some draw could train."""
    forks: dict[str, int]
    flags: dict[str, int]
    ambiguous: int
    torn_bytes: int

    @property
    def ratio(self) -> float | None:
        """How often a stored token was sent, on average; None when there is none."""
        return self.sent_tokens / self.unique_tokens if self.unique_tokens else None


def summary(tree: Tree, *, execution: str, torn_bytes: int = 0) -> TreeSummary:
    """The numbers of a tree."""
    nodes = list(tree.calls.values())
    ends = [tree.segments[node.segment].end for node in nodes]
    sampled = sum(node.num_output for node in nodes)
    by_role = Counter(leaf.role for leaf in tree.leaves())
    return TreeSummary(
        execution=execution,
        model=tree.opened.model if tree.opened else None,
        renderer=tree.opened.renderer if tree.opened else None,
        calls=len(nodes),
        committed=sum(node.committed is not None for node in nodes),
        failed=len(tree.failed),
        unfinished=len(tree.unfinished),
        complete=tree.is_complete,
        sealed=tree.sealed_at is not None,
        roots=len(tree.roots()),
        leaves={role: by_role[role] for role in PRIORITY if by_role[role]},
        unique_tokens=tree.num_tokens,
        sent_tokens=sum(ends) - sampled,
        output_tokens=sampled,
        targets=_trainable(tree),
        forks=_counted(node.fork for node in nodes if node.fork is not None),
        flags=_counted(flag for node in nodes for flag in node.flags),
        ambiguous=sum(node.ambiguous for node in nodes),
        torn_bytes=torn_bytes,
    )


def shares(tree: Tree) -> dict[CallId, CallShare]:
    """What each call added; a call's new segments stand together, its sampled one last."""
    found: dict[CallId, CallShare] = {}
    first = ROOT + 1
    for node in sorted(tree.calls.values(), key=lambda node: node.segment):
        own = range(first, node.segment + 1)
        new = [tree.segments[segment] for segment in own]
        kept = tree.segments[new[0].parent].end - new[0].trim
        found[node.id] = CallShare(
            segments=tuple(segment.id for segment in new),
            shared_tokens=kept,
            new_tokens=new[-1].end - node.num_output - kept,
            output_tokens=node.num_output,
        )
        first = node.segment + 1
    return found


def candidates(tree: Tree, execution: ExecutionId) -> list[Candidate]:
    """Leaves in the order they were committed, with the draw of the default settings."""
    drawn = select_trajectories(tree, generator(SEED, execution), max_trajectories=MAX_TRAJECTORIES)
    places = {one.leaf: (place, one) for place, one in enumerate(drawn, start=1)}
    found = []
    for leaf in tree.leaves():
        place, trajectory = places.get(leaf.id, (None, None))
        cut = leaf.num_output - leaf.num_committed
        found.append(
            Candidate(
                call=leaf.id,
                role=leaf.role,
                agent=leaf.agent,
                tokens=tree.segments[leaf.segment].end - cut,
                targets=sum(counts(tree, leaf).values()),
                drawn=place,
                drawn_targets=trajectory.num_targets if trajectory else 0,
            )
        )
    return found


def _trainable(tree: Tree) -> int:
    """A call's tokens count once; a path that trims its end counts fewer of them (T05)."""
    most: dict[CallId, int] = {}
    for leaf in tree.leaves():
        for call, kept in counts(tree, leaf).items():
            most[call] = max(kept, most.get(call, 0))
    return sum(most.values())


def oddities(calls: Sequence[CallNode]) -> dict[str, int]:
    """What is odd about calls, and about how many of them."""
    odd = Counter(flag for node in calls for flag in node.flags)
    odd["ambiguous"] = sum(node.ambiguous for node in calls)
    return {flag: count for flag, count in odd.items() if count}


def _counted(words: Iterable[str]) -> dict[str, int]:
    """Commonest first, then by name."""
    return dict(sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0])))


def facts(loaded: LoadedExecution) -> dict[str, Any]:
    """What `gyre inspect --json` prints; absent is null."""
    tree = loaded.tree
    numbers = summary(tree, execution=loaded.execution, torn_bytes=loaded.torn_bytes)
    added = shares(tree)
    return {
        **asdict(numbers),
        "ratio": numbers.ratio,
        "nodes": [_node(node, added[node.id]) for node in tree.calls.values()],
        "failures": {str(call): record.reason for call, record in tree.failed.items()},
        "unfinished_calls": sorted(tree.unfinished),
        "candidates": [asdict(candidate) for candidate in candidates(tree, loaded.execution)],
    }


def _node(node: CallNode, share: CallShare) -> dict[str, Any]:
    return {
        "call": node.id,
        "parent": node.parent,
        "root": node.root,
        "role": node.role,
        "harness": node.harness,
        "agent": node.agent,
        "fork": node.fork,
        "ambiguous": node.ambiguous,
        "finish": node.finish,
        "flags": list(node.flags),
        "committed": node.committed,
        "committed_tokens": node.num_committed,
        "shared_tokens": share.shared_tokens,
        "new_tokens": share.new_tokens,
        "output_tokens": share.output_tokens,
        "engines": [asdict(span) for span in node.spans],
        "opened_at": node.opened_at,
        "closed_at": node.closed_at,
    }
