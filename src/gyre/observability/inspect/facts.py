"""An execution as plain data, for programs: the numbers, every call, every leaf."""

from dataclasses import asdict
from typing import Any

from gyre.observability.inspect.summary import CallShare, candidates, shares, summary
from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.tree import CallNode


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
        "candidates": [asdict(one) for one in candidates(tree, loaded.execution)],
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
