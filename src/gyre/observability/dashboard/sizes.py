"""How large the trees of executions are: tokens, calls, tools used and leaves, from call logs."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from gyre.observability.dashboard.histograms import histogram, round_up_count
from gyre.trajectory.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """Of one tree; shared prefixes count once."""

    tokens: int
    sampled: int
    """Tokens that engines gave."""
    calls: int
    tool_calls: int
    leaves: int


def size(tree: Tree) -> TreeSize:
    nodes = list(tree.calls.values())
    return TreeSize(
        tokens=tree.num_tokens,
        sampled=sum(node.num_output for node in nodes),
        calls=len(nodes),
        tool_calls=sum(len(node.message.calls) for node in nodes),
        leaves=len(list(tree.leaves())),
    )


def trees(
    sizes: Iterable[tuple[TreeSize, str]], *, num_closed: int, kinds: tuple[str, ...]
) -> dict[str, Any]:
    """The panel: a histogram of each number, by how executions ended."""
    found = list(sizes)
    return {"num_read": len(found), "num_closed": num_closed} | {
        one.name: histogram(
            ((float(getattr(tree, one.name)), kind) for tree, kind in found),
            kinds=kinds,
            rounded=round_up_count,
        )
        for one in fields(TreeSize)
    }
