"""An execution's tree as boxes: prefaces, chains of calls, why each forks, and what was drawn."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gyre.observability.inspect.chains import Chain, RootView, Trunk, roots
from gyre.observability.inspect.summary import summary
from gyre.trajectory.draw import Trajectory, counts, generator, select_trajectories
from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.conversation import Message
from gyre.types.ids import CallId, ExecutionId, SegmentId

QUOTE_CHARS = 240
"""How much of a box's first and last reply is told with the tree."""

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
        own = [one for share in chain.shares for one in share.segments if one != preface]
        brought = self._tree.segments[preface].length * (preface in chain.shares[0].segments)
        admitted = [self._drawn.admitted.get(node.id) for node in chain.calls]
        taken = [one for one in admitted if one is not None]
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
            "flags": _flags(chain),
            "num_messages": len(own),
            "path_messages": self._tree.segments[last.segment].depth,
            "shared_tokens": chain.shared_tokens + brought,
            "new_tokens": chain.new_tokens - brought,
            "output_tokens": chain.output_tokens,
            "path_tokens": self._tree.segments[last.segment].end,
            "targets": sum(one.num_tokens for one in taken),
            "draws": sorted({one.draw for one in taken}),
            "is_leaf": last.id in self._leaves,
            "drawn": self._places.get(last.id),
            "versions": sorted(_versions(chain)),
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


def _flags(chain: Chain) -> dict[str, int]:
    odd = Counter(flag for node in chain.calls for flag in node.flags)
    odd["ambiguous"] = sum(node.ambiguous for node in chain.calls)
    return {flag: count for flag, count in odd.items() if count}


def _versions(chain: Chain) -> Iterator[int]:
    return iter({version for node in chain.calls for version in versions(node)})


def versions(node: CallNode) -> list[int]:
    """Weights that sampled a call, in the order in which they did, where engines said which."""
    return list(dict.fromkeys(span.version for span in node.spans if span.version is not None))
