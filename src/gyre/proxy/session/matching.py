"""Where a history stands in the tree: the longest known prefix, and replies it confirms."""

from collections.abc import Sequence
from dataclasses import dataclass

from gyre.proxy.session.history import HistoryUnit, MessageDigests, RequestHistory
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.call_records import CallEchoed
from gyre.types.conversation import Message
from gyre.types.ids import ROOT, CallId, SegmentId
from gyre.types.protocols import ParsedReply, Renderer

TAIL_TOKENS = 4096
"""How much of a prompt's end is handed to renderers: more than any family looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """The path in the tree that a history matches, and the replies it proves received."""

    path: list[SegmentId]
    """The preface's segment and one per matched unit; shorter than the history or equal to it."""
    cuts: dict[CallId, int]
    """Replies now found to be held only to so many output ids."""
    echoed: tuple[CallEchoed, ...]
    """Replies that this history proves to have been received."""
    ambiguous: bool

    def kept(self, tree: Tree, call: CallId, unit: HistoryUnit) -> int:
        """How many output ids of a reply this history holds, which names it by `unit`."""
        node = tree.calls[call]
        if call in self.cuts:
            return self.cuts[call]
        if node.cut is not None and not any(key in node.keys for key in unit.keys.sampled):
            return node.cut
        return node.num_output

    def last_sampled(self, tree: Tree) -> int | None:
        """Index in `path` of the deepest sampled segment."""
        for index in range(len(self.path) - 1, -1, -1):
            if tree.segments[self.path[index]].call is not None:
                return index
        return None


def match_prefix(
    tree: Tree, history: RequestHistory, keys: MessageDigests, renderer: Renderer
) -> PrefixMatch:
    """The longest path whose messages are the history's first ones (SPEC 4.2, 4.5)."""
    if history.known:
        front = history.known[-1:]
        place = _walk(tree, history, history.known, front, history.fresh, keys, renderer)
        if len(place.path) > len(history.known):
            return place
    prefaces = tree.find(ROOT, history.preface_key)
    units = history.units() if prefaces else ()
    return _walk(tree, history, [], prefaces, units, keys, renderer)


def _walk(
    tree: Tree,
    history: RequestHistory,
    known: list[SegmentId],
    front: Sequence[SegmentId],
    units: Sequence[HistoryUnit],
    keys: MessageDigests,
    renderer: Renderer,
) -> PrefixMatch:
    """Follows units from `front`, all branches that fit at once; `known` leads up to it."""
    cuts: dict[CallId, int] = {}
    echoed: list[CallEchoed] = []
    for unit in units:
        found = _step(tree, front, unit)
        if not found and unit.role == "assistant":
            partial = _partial(tree, front, history, unit, keys, renderer)
            if partial is not None:
                node, echo = partial
                found = [node.segment]
                cuts[node.id] = echo.tokens or 0
                echoed.append(echo)
        if not found:
            break
        front = found
    best, ambiguous = _best(tree, front)
    added = tree.path(best, below=known[-1] if known else ROOT)
    for segment in added:
        call = tree.segments[segment].call
        if call is not None and call not in cuts and tree.calls[call].committed is None:
            echoed.append(CallEchoed(call=call))
    return PrefixMatch(path=known + added, cuts=cuts, echoed=tuple(echoed), ambiguous=ambiguous)


def _step(tree: Tree, front: Sequence[SegmentId], unit: HistoryUnit) -> Sequence[SegmentId]:
    """Segments under any of `front` that stand for this unit."""
    keys = unit.keys
    if len(front) == 1 and not keys.sampled:
        return tree.find(front[0], keys.as_input)
    found: dict[SegmentId, None] = {}
    for segment in front:
        for key in keys.sampled:
            if sampled := tree.find(segment, key):
                found.update(dict.fromkeys(sampled))
                break
        found.update(dict.fromkeys(tree.find(segment, keys.as_input)))
    return list(found)


def _best(tree: Tree, front: Sequence[SegmentId]) -> tuple[SegmentId, bool]:
    """Of equally deep matches: sampled first, then delivered, then the newest (M08)."""
    if not front:
        return ROOT, False

    def rank(segment: SegmentId) -> tuple[bool, bool, SegmentId]:
        call = tree.segments[segment].call
        committed = call is not None and tree.calls[call].committed is not None
        return call is not None, committed, segment

    twins = sum(tree.segments[segment].call is not None for segment in front)
    return max(front, key=rank), twins > 1


def _partial(
    tree: Tree,
    front: Sequence[SegmentId],
    history: RequestHistory,
    unit: HistoryUnit,
    keys: MessageDigests,
    renderer: Renderer,
) -> tuple[CallNode, CallEchoed] | None:
    """An undelivered reply of which this assistant message is the beginning (SPEC 4.5)."""
    (message,) = history.messages(unit)
    for segment in front:
        for node in tree.calls_at(segment):
            if node.committed is not None or not _may_begin(message, node.message):
                continue
            output = tree.output_ids(node.id).tolist()
            ids = tree.path_ids(node.segment, last=TAIL_TOKENS + len(output)).tolist()
            tail = ids[: len(ids) - len(output)]
            cut = cut_of(renderer, history, node, output, tail, message)
            if cut is not None:
                return node, CallEchoed(call=node.id, tokens=cut, keys=keys.reply(message))
    return None


def _may_begin(message: Message, whole: Message) -> bool:
    ids = tuple(call.id for call in message.calls)
    if ids != tuple(call.id for call in whole.calls[: len(ids)]):
        return False
    return whole.text.startswith(message.text) and bool(ids or message.text)


def cut_of(
    renderer: Renderer,
    history: RequestHistory,
    node: CallNode,
    output: list[int],
    tail: list[int],
    message: Message,
) -> int | None:
    """How many output ids spell exactly the beginning that came back; None if no cut does."""

    def parsed(count: int) -> ParsedReply:
        return renderer.parse(output[:count], tail, history.preface.tools)

    if message.calls:
        if message.text != node.message.text:
            return None
        ends = [call.end for call in parsed(len(output)).calls]
        return ends[len(message.calls) - 1] if len(message.calls) <= len(ends) else None
    low, high = 0, len(output)
    while low < high:
        middle = (low + high) // 2
        if len(parsed(middle).text) < len(message.text):
            low = middle + 1
        else:
            high = middle
    return low if parsed(low).text == message.text and not parsed(low).calls else None
