"""A request that cannot fit is refused before all of its text is encoded.

Encoding takes a second for every megabyte, in which a proxy answers nobody else.
"""

from collections.abc import Iterator

from gyre.proxy.session.history import RequestHistory
from gyre.proxy.session.matching import PrefixMatch
from gyre.types.errors import ContextOverflow, TooLarge
from gyre.types.ports import Renderer

LIKELY_BYTES = 8
"""Of a token; new text with more than that for each token of the window is looked at in slices."""
MOST_BYTES = 32
"""Of a token on average, whatever the text; only runs of blanks have more."""
SLICE_CHARS = 2**16


def check_context_early(
    story: RequestHistory,
    place: PrefixMatch,
    renderer: Renderer,
    context_tokens: int,
    *,
    where: str,
) -> None:
    """Raises ContextOverflow, or TooLarge, if what is new cannot be part of any prompt.

    `where`: the field of a request that holds its messages.
    """
    texts = [text for text in _new_texts(story, place, renderer) if text]
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


def _new_texts(story: RequestHistory, place: PrefixMatch, renderer: Renderer) -> Iterator[str]:
    """Everything that no prompt before has held and this one will, thinking that may go aside."""
    if not place.path:
        for tool in story.preface.tools:
            yield from (tool.name, tool.description, tool.parameters)
        yield from (message.text for message in story.preface.system)
    for unit in story.units(max(0, len(place.path) - 1)):
        for message in story.messages(unit):
            yield message.text
            if message.reasoning is not None and renderer.keeps_thinking:
                yield message.reasoning
            for call in message.calls:
                yield from (call.name, call.arguments)


def _slices(texts: list[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), SLICE_CHARS):
            yield text[start : start + SLICE_CHARS]
