"""One call as it can be read: its messages, and every token with where it came from."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Literal

from gyre.observability.inspect.tree_layout import SelectionRule, TrainedTokens, draws
from gyre.observability.inspect.tree_summary import shares
from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.tree import CallNode, Segment
from gyre.types.errors import ConfigError
from gyre.types.ids import CallId

Provenance = Literal["policy", "harness", "tool", "template"]
Decode = Callable[[Sequence[int]], str]

MOST_TOKENS = 20_000
"""Tokens of one message that are sent; of more, the first and the last half of as many."""
UNDECIDED = "\ufffd"
"""What a decoder says while the bytes of a character are not all there."""
MOST_UNDECIDED = 8
"""Tokens that may wait for the rest of a character; no character takes as many."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Ids to text, and the ids that only a template writes."""

    decode: Decode
    special: Collection[int] = field(default_factory=frozenset)


def call_data(
    loaded: LoadedExecution, call: int, rule: SelectionRule, *, vocabulary: Vocabulary | None
) -> Plain:
    """A call's new messages and its reply, in plain values; ConfigError without it.

    Without a vocabulary messages have no text, except the reply, which is kept as text as well.
    """
    tree = loaded.tree
    node = tree.calls.get(CallId(call))
    if node is None:
        raise ConfigError(
            f"{loaded.execution}: no call {call} that ended; it has {len(tree.calls)}"
        )
    drawn = draws(tree, loaded.execution, rule)
    share = shares(tree)[node.id]
    reader = _Reader(loaded, vocabulary)
    return {
        "call": node.id,
        "parent": node.parent,
        "root": node.root,
        "role": node.role,
        "agent": node.agent,
        "harness": node.harness,
        "fork": node.fork,
        "finish": node.finish,
        "flags": list(node.flags),
        "is_committed": node.committed is not None,
        "committed_tokens": node.num_committed,
        "is_trainable": node.is_trainable,
        "shared_tokens": share.shared_tokens,
        "opened_at": node.opened_at,
        "closed_at": node.closed_at,
        "spans": [asdict(span) for span in node.spans],
        "has_text": vocabulary is not None,
        "messages": [
            reader.prompt_message(tree.segments[segment]) for segment in share.segments[:-1]
        ],
        "reply": reader.reply(node, drawn.admitted.get(node.id)),
    }


class _Reader:
    """Tokens of one execution as text."""

    def __init__(self, loaded: LoadedExecution, vocabulary: Vocabulary | None) -> None:
        self._tree = loaded.tree
        self._vocabulary = vocabulary

    def prompt_message(self, segment: Segment) -> Plain:
        """A message of the harness: runs of tokens that came from one place."""
        ids = self._tree.tokens(segment.id).tolist()
        source: Provenance = "tool" if segment.label == "tool" else "harness"
        kept, left_out = _kept(ids)
        return {
            "segment": segment.id,
            "label": segment.label,
            "num_tokens": len(ids),
            "left_out": left_out,
            "trim": segment.trim,
            "runs": [run for part in kept for run in self._runs(part, source)],
        }

    def _runs(self, ids: Sequence[int], source: Provenance) -> Iterator[Plain]:
        if self._vocabulary is None:
            yield _run(source, len(ids), None)
            return
        start = 0
        for at in range(1, len(ids) + 1):
            if at < len(ids) and self._is_special(ids[at]) == self._is_special(ids[start]):
                continue
            whose: Provenance = "template" if self._is_special(ids[start]) else source
            yield _run(whose, at - start, self._vocabulary.decode(ids[start:at]))
            start = at

    def _is_special(self, token: int) -> bool:
        return self._vocabulary is not None and token in self._vocabulary.special

    def reply(self, node: CallNode, admitted: TrainedTokens | None) -> Plain:
        """The generation prompt, and each sampled token with what was recorded of it."""
        tree, segment = self._tree, self._tree.segments[node.segment]
        prompt = tree.tokens(node.segment)[: segment.prompt].tolist()
        output = tree.output_ids(node.id).tolist()
        shown = output[:MOST_TOKENS]
        logprobs = None
        if node.logprobs_start is not None:
            values = tree.output_logprobs(node.id)[: len(shown)].tolist()
            logprobs = [round(value, 4) if isfinite(value) else None for value in values]
        decode = None if self._vocabulary is None else self._vocabulary.decode
        return {
            "segment": segment.id,
            "prompt": [_run("template", len(prompt), decode(prompt) if decode else None)],
            "message": asdict(node.message),
            "num_tokens": len(output),
            "left_out": len(output) - len(shown),
            "ids": shown,
            "pieces": None if decode is None else pieces(shown, decode),
            "logprobs": logprobs,
            "draw": None if admitted is None else admitted.draw,
            "num_targets": 0 if admitted is None else admitted.num_tokens,
            "why_not": _why_not(node, admitted),
        }


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each token adds; one that ends inside a character adds nothing yet.

    Decoded with a few tokens before it, because a token alone may read otherwise.
    """
    found: list[str] = []
    start = seen = 0
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:seen]), decode(ids[start:end])
        is_whole = len(now) > len(before) and not now.endswith(UNDECIDED)
        if not is_whole and end < len(ids) and end - seen < MOST_UNDECIDED:
            found.append("")
            continue
        found.append(now[len(before) :])
        start, seen = seen, end
    return found


def _kept(ids: Sequence[int]) -> tuple[list[Sequence[int]], int]:
    if len(ids) <= MOST_TOKENS:
        return [ids], 0
    half = MOST_TOKENS // 2
    return [ids[:half], ids[-half:]], len(ids) - 2 * half


def _run(source: Provenance, num_tokens: int, text: str | None) -> Plain:
    return {"source": source, "num_tokens": num_tokens, "text": text}


def _why_not(node: CallNode, admitted: TrainedTokens | None) -> str | None:
    """Why none of its tokens is a target; None where some are."""
    if admitted is not None:
        return None
    if node.role == "aux":
        return "a side call is never trained"
    if node.logprobs_start is None:
        return "its engine gave no log-probabilities"
    if node.committed is None:
        return "nobody is known to have received it"
    return "no draw took it"
