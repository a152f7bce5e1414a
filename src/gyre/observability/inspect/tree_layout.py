"""A tree as chains and branches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gyre.observability.inspect.tree_summary import CallShare, oddities, shares, summary
from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.selection import Trajectory, counts, generator, select_trajectories
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.conversation import Message
from gyre.types.ids import CallId, ExecutionId, SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Calls of one agent in one role, each simply extending the one before."""

    calls: tuple[CallNode, ...]
    shares: tuple[CallShare, ...]
    """What each call added."""
    sides: tuple["Trunk", ...]
    """What leaves after the last call, besides the chain that follows in the same trunk."""

    @property
    def shared_tokens(self) -> int:
        """Of the first call: what its prompt shares with calls before it."""
        return self.shares[0].shared_tokens

    @property
    def new_tokens(self) -> int:
        return sum(share.new_tokens for share in self.shares)

    @property
    def output_tokens(self) -> int:
        return sum(share.output_tokens for share in self.shares)


Trunk = tuple[Chain, ...]
"""Chains that follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """A preface, and the conversations that stand under it."""

    segment: SegmentId
    tokens: int
    trunks: tuple[Trunk, ...]


def roots(tree: Tree) -> list[RootView]:
    """Every call of the tree, once, in the order of the prefaces."""
    grower = _Grower(tree)
    found = []
    for segment in tree.roots():
        first = [node for node in tree.children(None) if node.root == segment]
        found.append(
            RootView(
                segment=segment,
                tokens=tree.segments[segment].length,
                trunks=tuple(grower.trunk(node) for node in first),
            )
        )
    return found


class _Grower:
    """Cuts the tree into chains."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._shares = shares(tree)
        self._size: dict[CallId, int] = {}
        # A call closes after the one it builds on, so a parent is met after all its children.
        for node in reversed(tree.calls.values()):
            below = sum(self._size[child.id] for child in tree.children(node.id))
            self._size[node.id] = 1 + below

    def trunk(self, node: CallNode | None) -> Trunk:
        """From one call down to the end; the largest continuation in the same role stays in it.

        So sides are small: nesting grows with the logarithm of the calls, and recursion with it.
        """
        found = []
        while node is not None:
            run = [node]
            children = self._tree.children(node.id)
            while len(children) == 1 and _extends(run[-1], children[0]):
                run += children
                children = self._tree.children(run[-1].id)
            going_on = max(children, key=lambda child: self._rank(run[-1], child), default=None)
            sides = [child for child in children if child is not going_on]
            found.append(
                Chain(
                    calls=tuple(run),
                    shares=tuple(self._shares[node.id] for node in run),
                    sides=tuple(self.trunk(side) for side in sides),
                )
            )
            node = going_on
        return tuple(found)

    def _rank(self, parent: CallNode, child: CallNode) -> tuple[bool, bool, int, int]:
        return child.committed is not None, _same(parent, child), self._size[child.id], -child.id


def _same(one: CallNode, other: CallNode) -> bool:
    return (one.role, one.agent) == (other.role, other.agent)


def _extends(parent: CallNode, child: CallNode) -> bool:
    """Whether two calls read as one line."""
    both = (parent.committed is None) == (child.committed is None)
    return both and child.fork is None and _same(parent, child)


QUOTE_CHARS = 240
"""How much of a box's first and last reply is sent with the tree."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRule:
    """What decides, with the name of an execution, which of its trajectories are trained."""

    seed: int
    max_trajectories: int | None
    """J_max; None means all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """The sampled tokens of a call that carry loss, and the draw that took them (SPEC 7.2)."""

    draw: int
    """Its place among the draws, from 1."""
    num_tokens: int
    """The first so many of the call's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTrajectories:
    """What a run's draw takes of one execution."""

    trajectories: tuple[Trajectory, ...]
    admitted: Mapping[CallId, TrainedTokens]
    """Calls that have targets; disjoint, because each is taken once."""


def draws(tree: Tree, execution: ExecutionId, rule: SelectionRule) -> SelectedTrajectories:
    """The same draw that training makes of this execution."""
    rng = generator(rule.seed, execution)
    found = select_trajectories(tree, rng, max_trajectories=rule.max_trajectories)
    admitted = {}
    for place, trajectory in enumerate(found, start=1):
        on_path = counts(tree, tree.calls[trajectory.leaf])
        for call in trajectory.targets:
            admitted[call] = TrainedTokens(draw=place, num_tokens=on_path[call])
    return SelectedTrajectories(trajectories=tuple(found), admitted=admitted)


def tree_data(loaded: LoadedExecution, rule: SelectionRule) -> Plain:
    """Everything that a drawing of the tree needs, in plain values; absent is None."""
    tree = loaded.tree
    drawn = draws(tree, loaded.execution, rule)
    numbers = summary(tree, execution=loaded.execution, torn_bytes=loaded.torn_bytes)
    boxes = _Boxes(tree, drawn)
    for root in roots(tree):
        boxes.add_root(root)
    return {
        "summary": {**asdict(numbers), "ratio": numbers.ratio},
        "draw": asdict(rule),
        "boxes": boxes.found,
        "trajectories": [
            boxes.trajectory(place, one) for place, one in enumerate(drawn.trajectories, start=1)
        ],
        "failures": [
            {"call": call, "reason": record.reason} for call, record in tree.failed.items()
        ],
        "unfinished": sorted(tree.unfinished),
    }


class _Boxes:
    """Numbers boxes as it meets them, parents before what stands below them."""

    def __init__(self, tree: Tree, drawn: SelectedTrajectories) -> None:
        self._tree = tree
        self._drawn = drawn
        self._leaves = {leaf.id for leaf in tree.leaves()}
        self._places = {one.leaf: at for at, one in enumerate(drawn.trajectories, start=1)}
        self._box_of: dict[CallId, int] = {}
        self.found: list[Plain] = []

    def add_root(self, root: RootView) -> None:
        number = len(self.found)
        self.found.append(
            {
                "id": number,
                "parent": None,
                "kind": "preface",
                "segment": root.segment,
                "call": root.trunks[0][0].calls[0].id,
                "new_tokens": root.tokens,
                "path_tokens": root.tokens,
            }
        )
        for trunk in root.trunks:
            self._add_trunk(trunk, number, root.segment)

    def _add_trunk(self, trunk: Trunk, parent: int, preface: SegmentId) -> None:
        for place, chain in enumerate(trunk):
            number = len(self.found)
            box = self._chain(chain, number, parent, preface)
            self.found.append(box | {"goes_on": place > 0})
            self._box_of.update({node.id: number for node in chain.calls})
            for side in chain.sides:
                self._add_trunk(side, number, preface)
            parent = number

    def _chain(self, chain: Chain, number: int, parent: int, preface: SegmentId) -> Plain:
        first, last = chain.calls[0], chain.calls[-1]
        # The first call under a preface brought it along; here it has a box of its own.
        own = [
            segment for share in chain.shares for segment in share.segments if segment != preface
        ]
        brought = self._tree.segments[preface].length * (preface in chain.shares[0].segments)
        admitted = [self._drawn.admitted.get(node.id) for node in chain.calls]
        taken = [trained for trained in admitted if trained is not None]
        return {
            "id": number,
            "parent": parent,
            "kind": "calls",
            "calls": [node.id for node in chain.calls],
            "role": first.role,
            "agent": first.agent,
            "fork": first.fork,
            "is_summary": first.role.endswith("-summary"),
            "is_committed": first.committed is not None,
            "finish": last.finish,
            "cut": last.cut,
            "flags": oddities(chain.calls),
            "num_messages": len(own),
            "path_messages": self._tree.segments[last.segment].depth,
            "shared_tokens": chain.shared_tokens + brought,
            "new_tokens": chain.new_tokens - brought,
            "output_tokens": chain.output_tokens,
            "path_tokens": self._tree.segments[last.segment].end,
            "targets": sum(trained.num_tokens for trained in taken),
            "draws": sorted({trained.draw for trained in taken}),
            "is_leaf": last.id in self._leaves,
            "drawn": self._places.get(last.id),
            "versions": sorted({version for node in chain.calls for version in versions(node)}),
            "engines": sorted({span.engine for node in chain.calls for span in node.spans}),
            "tools": dict(
                Counter(call.name for node in chain.calls for call in node.message.calls)
            ),
            "opened_at": first.opened_at,
            "closed_at": last.closed_at,
            "first_words": quoted(first.message),
            "last_words": quoted(last.message),
        }

    def trajectory(self, place: int, one: Trajectory) -> Plain:
        leaf = self._tree.calls[one.leaf]
        below = [self._box_of[node.id] for node in self._tree.ancestry(leaf.id)]
        return {
            "place": place,
            "leaf": leaf.id,
            "role": leaf.role,
            "agent": leaf.agent,
            "tokens": self._tree.segments[leaf.segment].end - leaf.num_output + leaf.num_committed,
            "targets": one.num_targets,
            "boxes": list(dict.fromkeys([self.found[below[0]]["parent"], *below])),
        }


def quoted(message: Message) -> str:
    """The beginning of a reply on one line; tool calls where it says nothing else."""
    text = " ".join(message.text.split()) or " ".join((message.reasoning or "").split())
    text = text or ", ".join(f"{call.name} {call.arguments}" for call in message.calls)
    return text if len(text) <= QUOTE_CHARS else f"{text[: QUOTE_CHARS - 1]}…"


def versions(node: CallNode) -> list[int]:
    """Weights that sampled a call, in the order in which they did, where engines said which."""
    return list(dict.fromkeys(span.version for span in node.spans if span.version is not None))
