"""The prompt from stored ids and new encodings; early overflow check.

A request that cannot fit is refused before all of its text is encoded:
encoding takes a second for every megabyte, in which a proxy answers no other request.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from gyre.proxy.session.history import HistoryUnit, RequestHistory, plain_id, spans
from gyre.proxy.session.matching import TAIL_TOKENS, PrefixMatch
from gyre.trajectory.tree import Ids, Tree
from gyre.types.call_records import NewSegment
from gyre.types.conversation import Message, ToolCall
from gyre.types.errors import ContextOverflow, TooLarge
from gyre.types.ids import ROOT, CallId, SegmentId
from gyre.types.protocols import GENERATION, PREFACE, Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt of one call: the path of `anchor`, then `inputs`, then `generation`."""

    anchor: SegmentId
    """Deepest segment whose tokens are reused."""
    inputs: tuple[NewSegment, ...]
    generation: list[int]
    trim: int = 0
    """Tokens at the path's end that `generation` leaves out (only without inputs)."""
    rerendered: bool = False
    """Whether the family's template would not let the known path stand."""
    ids: Ids


def compose(tree: Tree, history: RequestHistory, place: PrefixMatch, renderer: Renderer) -> Prompt:
    """The exact prompt of a history whose last unit is no assistant message."""
    at = place.last_sampled(tree)
    pieces: list[list[int]] | None = None
    start, trim, generation = ROOT, 0, list[int]()
    fresh: Sequence[HistoryUnit | None] = ()
    if at is not None:
        bridged = _bridge(tree, history, place, renderer, at)
        if bridged is not None:
            trim, pieces, generation = bridged
            start, fresh = place.path[at], history.units(at)
    rerendered = at is not None and pieces is None
    if pieces is None:
        fresh = [None, *history.units()]
        pieces, generation = _whole(tree, history, place, renderer)
    anchor, inputs = _settle(tree, history, start, trim, fresh, pieces)
    path = tree.path_ids(anchor)
    known = path[: len(path) - inputs[0].trim] if inputs else path
    news = [np.frombuffer(new.ids, dtype=np.int32) for new in inputs]
    ids = np.concatenate([known, *news, np.frombuffer(array("i", generation), dtype=np.int32)])
    return Prompt(
        anchor=anchor,
        inputs=tuple(inputs),
        generation=generation,
        rerendered=rerendered,
        ids=ids,
    )


def extend(tree: Tree, history: RequestHistory, place: PrefixMatch, renderer: Renderer) -> Prompt:
    """A prompt that continues a sampled reply which the request gives as its last message (M09)."""
    anchor = place.path[-1]
    call = tree.segments[anchor].call
    if call is None:
        raise AssertionError("only a sampled reply is extended")
    output = tree.output_ids(call).tolist()
    kept = place.kept(tree, call, history.units(len(history) - 1)[0])
    while kept and output[kept - 1] in renderer.stop_ids:
        kept -= 1
    trim = len(output) - kept
    path = tree.path_ids(anchor)
    return Prompt(
        anchor=anchor, inputs=(), generation=[], trim=trim, ids=path[: len(path) - trim].copy()
    )


def prefilled(prompt: Prompt, text: list[int]) -> Prompt:
    """The prompt with the beginning of the reply given: input, like the rest (M11, M13)."""
    return replace(
        prompt,
        generation=prompt.generation + text,
        ids=np.concatenate([prompt.ids, np.array(text, dtype=np.int32)]),
    )


def _bridge(
    tree: Tree, history: RequestHistory, place: PrefixMatch, renderer: Renderer, at: int
) -> tuple[int, list[list[int]], list[int]] | None:
    """(trim, ids per unit after the sampled one, generation prompt); None: render anew."""
    segment = tree.segments[place.path[at]]
    call = segment.call
    after = history.units(at)
    lead = 0
    while lead < len(after) and after[lead].role != "assistant":
        lead += 1
    if call is None or lead == 0:
        return None
    output = tree.output_ids(call).tolist()
    echoed = history.units(at - 1)[0]
    kept = place.kept(tree, call, echoed)
    tail = tree.path_ids(segment.id, last=TAIL_TOKENS + len(output)).tolist()
    said = [history.messages(unit) for unit in after[:lead]]
    (echo,) = history.messages(echoed)
    known = _associations(echo, tree.calls[call].message)
    bridged = renderer.bridge(
        tail[: len(tail) - len(output)],
        output[:kept],
        [associate(message, known) for unit in said for message in unit],
        history.preface.tools,
    )
    if bridged is None:
        return None
    pieces, generation = _cut(bridged.ids, bridged.owners, list(spans(said, first=0)))
    if lead < len(after):
        # Assistant turns the policy did not sample here follow: their text comes from a full
        # rendering, in which a turn begins cleanly at its opener.
        rest, generation = _whole(tree, history, place, renderer)
        pieces += rest[1 + at + lead :]
    return len(output) - kept + bridged.trim, pieces, generation


def _whole(
    tree: Tree, history: RequestHistory, place: PrefixMatch, renderer: Renderer
) -> tuple[list[list[int]], list[int]]:
    """Ids of the preface and of every unit, and the generation prompt, rendered from nothing."""
    said: list[list[Message]] = [list(history.preface.system)]
    known: dict[str, ToolCall] = {}
    for index, unit in enumerate(history.units()):
        messages = history.messages(unit)
        if unit.role == "assistant":
            (echo,) = messages
            stored = _stored(tree, place, index, unit)
            known |= _associations(echo, stored or echo)
            messages = [stored or echo]
        said.append([associate(message, known) for message in messages])
    flat = [message for unit in said for message in unit]
    rendered = renderer.render(flat, history.preface.tools)
    return _cut(rendered.ids, rendered.owners, list(spans(said, first=0)))


def _stored(tree: Tree, place: PrefixMatch, index: int, unit: HistoryUnit) -> Message | None:
    """The sampled message behind a matched unit, payload and all (SPEC 4.3)."""
    if index + 1 >= len(place.path):
        return None
    call: CallId | None = tree.segments[place.path[index + 1]].call
    if call is None or place.kept(tree, call, unit) < tree.calls[call].num_output:
        return None
    return tree.calls[call].message


def _cut(
    ids: Sequence[int], owners: Sequence[int], ranges: list[range]
) -> tuple[list[list[int]], list[int]]:
    """Ids per unit; an id whose owner comes earlier stays with the unit already reached."""
    unit_of = {message: index for index, covered in enumerate(ranges) for message in covered}
    pieces: list[list[int]] = [[] for _ in ranges]
    generation: list[int] = []
    unit = at = 0
    for owner, run in groupby(owners):
        end = at + len(list(run))
        if owner == GENERATION:
            generation += ids[at:end]
        else:
            if owner != PREFACE:
                unit = max(unit, unit_of[owner])
            pieces[unit] += ids[at:end]
        at = end
    return pieces, generation


def _settle(
    tree: Tree,
    history: RequestHistory,
    start: SegmentId,
    trim: int,
    units: Sequence[HistoryUnit | None],
    pieces: list[list[int]],
) -> tuple[SegmentId, list[NewSegment]]:
    """Follow the tree while tokens are equal, then list what is new (None is the preface)."""
    anchor = start
    inputs: list[NewSegment] = []
    carried: list[int] = []
    for unit, piece in zip(units, pieces, strict=True):
        ids = carried + piece
        carried = []
        new = NewSegment(
            label="system" if unit is None else unit.role,
            key=history.preface_key if unit is None else unit.keys.as_input,
            ids=array("i", ids).tobytes(),
            trim=trim,
        )
        trim = 0
        if not inputs:
            same = tree.same(anchor, new)
            if same is not None:
                anchor = same
                continue
            if unit is not None and unit.role == "assistant":
                sampled = _sampled_prefix(tree, anchor, unit, ids)
                if sampled is not None:
                    anchor = sampled
                    # What the template puts after the stop belongs to the next turn.
                    carried = ids[tree.segments[sampled].length :]
                    continue
        inputs.append(new)
    return anchor, inputs


def _sampled_prefix(
    tree: Tree, anchor: SegmentId, unit: HistoryUnit, ids: list[int]
) -> SegmentId | None:
    """A sampled reply whose own tokens the rendering repeats exactly."""
    for key in unit.keys.sampled:
        for candidate in tree.find(anchor, key):
            segment = tree.segments[candidate]
            stored = tree.tokens(candidate).tolist()
            if segment.call is not None and not segment.trim and ids[: len(stored)] == stored:
                return candidate
    return None


def _associations(echo: Message, stored: Message) -> dict[str, ToolCall]:
    """The stored call behind each id as the harness now writes it (T15)."""
    return {
        plain_id(incoming.id): original
        for incoming, original in zip(echo.calls, stored.calls, strict=False)
    }


def associate(message: Message, known: dict[str, ToolCall]) -> Message:
    """A tool result that names its tool and the id the model itself wrote."""
    if message.answers is None:
        return message
    call = known.get(plain_id(message.answers))
    if call is None:
        return message
    return replace(message, name=call.name, answers=call.native_id or call.id)


LIKELY_BYTES = 8
"""Of a token; new text with more than that for each token of the window is looked at in slices."""
MOST_BYTES = 32
"""Of a token on average, in any text; only runs of blanks have more."""
SLICE_CHARS = 2**16


def check_context_early(
    history: RequestHistory,
    place: PrefixMatch,
    renderer: Renderer,
    context_tokens: int,
    *,
    where: str,
) -> None:
    """Raises ContextOverflow, or TooLarge, if what is new cannot be part of any prompt.

    `where`: the field of a request that holds its messages.
    """
    texts = [text for text in _new_texts(history, place, renderer) if text]
    total_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if total_bytes <= LIKELY_BYTES * context_tokens:
        return
    # Slices cut some tokens in two, so that a sum is believed only when it is well over.
    enough = context_tokens + context_tokens // 16
    found = seen_bytes = 0
    for piece in _slices(texts):
        found += len(renderer.encode(piece))
        seen_bytes += len(piece.encode("utf-8", "replace"))
        if found > enough:
            raise ContextOverflow(prompt_tokens=found, max_tokens=context_tokens)
        if seen_bytes > MOST_BYTES * context_tokens:
            message = f"expected at most {MOST_BYTES * context_tokens} bytes of new text"
            raise TooLarge(message, where=where)


def _new_texts(history: RequestHistory, place: PrefixMatch, renderer: Renderer) -> Iterator[str]:
    """Everything that no prompt before has held and this one will, thinking that may go aside."""
    if not place.path:
        for tool in history.preface.tools:
            yield from (tool.name, tool.description, tool.parameters)
        yield from (message.text for message in history.preface.system)
    for unit in history.units(max(0, len(place.path) - 1)):
        for message in history.messages(unit):
            yield message.text
            if message.reasoning is not None and renderer.keeps_thinking:
                yield message.reasoning
            for call in message.calls:
                yield from (call.name, call.arguments)


def _slices(texts: list[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), SLICE_CHARS):
            yield text[start : start + SLICE_CHARS]
