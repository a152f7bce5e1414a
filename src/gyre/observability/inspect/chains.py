"""Calls as a person follows them: chains without a fork, and the side chains that leave them."""

from dataclasses import dataclass

from gyre.observability.inspect.summary import CallShare, shares
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.ids import CallId, SegmentId


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
                    shares=tuple(self._shares[one.id] for one in run),
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
