"""An execution's tree as lines of text: a header, chains of calls, forks with their reasons."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gyre.observability.inspect.tree_layout import Chain, RootView, Trunk, roots
from gyre.observability.inspect.tree_summary import (
    MAX_TRAJECTORIES,
    SEED,
    Candidate,
    TreeSummary,
    candidates,
    oddities,
    summary,
)
from gyre.observability.terminal.colors import Line, Piece, Style, columns, cut, printed, safe
from gyre.trajectory.tree import CallNode, Tree
from gyre.types.call_records import CallRole
from gyre.types.conversation import Message
from gyre.types.ids import ExecutionId

Decode = Callable[[Sequence[int]], str]

TEXT_COLUMNS = 100
"""How much of a message is shown where no terminal gives its width."""
TEXT_TOKENS = 400
AGENT_COLUMNS = 14

_STYLES: Mapping[CallRole, Style] = {
    "main": "green",
    "main-summary": "cyan",
    "sub-agent": "blue",
    "sub-agent-summary": "magenta",
    "aux": "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeViewOptions:
    """What to show, and for whom."""

    width: int | None = None
    """Columns of the terminal; None where lines may be as long as they are."""
    colour: bool = False
    leaves: bool = False
    text: bool = False
    decode: Decode | None = None
    """Ids to text; without it only replies are shown, which are kept as text as well."""


def lines(
    tree: Tree, *, execution: ExecutionId, torn_bytes: int = 0, view: TreeViewOptions | None = None
) -> list[str]:
    """One execution, from its header to its leaves."""
    view = view or TreeViewOptions()
    found = list(_header(summary(tree, execution=execution, torn_bytes=torn_bytes)))
    rows = [row for root in enumerate(roots(tree), start=1) for row in _root(tree, *root, view)]
    if rows:
        found += [[], *_aligned(rows)]
    found += _without_output(tree)
    if view.leaves:
        found += [[], *_leaves(candidates(tree, execution))]
    return printed(found, width=view.width, colour=view.colour)


# The header


def _header(one: TreeSummary) -> Iterator[Line]:
    state: list[Piece] = [("sealed", "dim") if one.sealed else ("open", "yellow"), (", ", None)]
    state.append(("complete", "dim") if one.complete else ("incomplete", "red"))
    yield [("execution ", None), (safe(one.execution), "bold"), ("  ", None), *state]
    ends = f", {one.failed:,} failed" if one.failed else ""
    ends += f", {one.unfinished:,} unfinished" if one.unfinished else ""
    yield _fact("calls", f"{one.calls:,} ({one.committed:,} committed){ends}")
    yield _fact("roots", f"{one.roots:,}")
    yield _fact("leaves", _tally(one.leaves))
    ratio = f" ({one.ratio:.1f} times as many)" if one.ratio is not None else ""
    yield _fact(
        "tokens", f"{one.unique_tokens:,} unique, {one.sent_tokens:,} sent to engines{ratio}"
    )
    yield _fact("targets", f"{one.targets:,} of {one.output_tokens:,} sampled tokens")
    yield _fact("forks", _tally(one.forks))
    flags = one.flags | ({"ambiguous": one.ambiguous} if one.ambiguous else {})
    yield _fact("flags", _tally(flags), "yellow" if flags else None)
    if one.torn_bytes:
        yield _fact("torn", f"{one.torn_bytes:,} bytes of a last record are left out", "yellow")


def _fact(name: str, value: str, style: Style | None = None) -> Line:
    return [(f"  {name:<8}", "dim"), (value, style)]


def _tally(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {safe(name)}" for name, count in counted.items()) or "none"


# The tree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line of the tree, in columns that are aligned when all are known."""

    graph: str
    cells: tuple[Piece, ...] = ()
    """Calls, role, agent; then shared, new and sampled tokens; then notes."""
    words: tuple[Piece, ...] | None = None
    """Free text instead of columns."""


_HEADINGS = ("calls", "role", "agent", "shared", "new", "sampled", "")
_NUMBERS = range(3, 6)
_GAP = "  "


def _root(tree: Tree, number: int, root: RootView, view: TreeViewOptions) -> Iterator[_Row]:
    title = f"root {number}: a preface of {root.tokens:,} tokens"
    yield _Row(graph="", words=((title, "bold"),))
    for place, trunk in enumerate(root.trunks, start=1):
        is_last = place == len(root.trunks)
        yield from _trunk(
            tree, trunk, view, first="└─" if is_last else "├─", rest="  " if is_last else "│ "
        )


def _trunk(
    tree: Tree, trunk: Trunk, view: TreeViewOptions, *, first: str, rest: str
) -> Iterator[_Row]:
    """A column of chains; sides leave it with a branch, and it goes on below them."""
    graph = first
    for number, chain in enumerate(trunk, start=1):
        mark = "○ " if chain.calls[0].committed is None else "● "
        yield _Row(graph=graph + mark, cells=_cells(chain))
        goes_on = number < len(trunk) or bool(chain.sides)
        if view.text:
            below = rest + ("│ " if goes_on else "  ")
            yield from (_Row(graph=below, words=words) for words in _texts(tree, chain, view))
        for side in chain.sides:
            yield from _trunk(tree, side, view, first=f"{rest}├─", rest=f"{rest}│ ")
        graph = rest


def _cells(chain: Chain) -> tuple[Piece, ...]:
    first = chain.calls[0]
    return (
        (_numbered(chain), None),
        (first.role, _STYLES[first.role]),
        (cut(safe(first.agent or ""), AGENT_COLUMNS), None),
        (f"{chain.shared_tokens:,}", "dim"),
        (f"{chain.new_tokens:,}", None),
        (f"{chain.output_tokens:,}", None),
        (", ".join(_notes(chain.calls)), "yellow"),
    )


def _numbered(chain: Chain) -> str:
    first, last, many = chain.calls[0].id, chain.calls[-1].id, len(chain.calls)
    if many == 1:
        return f"{first}"
    return f"{first}-{last}" if last - first == many - 1 else f"{first}..{last} ({many})"


def _notes(calls: Sequence[CallNode]) -> Iterator[str]:
    """Why the chain is not simply the continuation of another, and what is odd about it."""
    first, last = calls[0], calls[-1]
    if first.fork is not None:
        yield safe(first.fork)
    if first.committed is None:
        yield "uncommitted"
    if last.cut is not None:
        yield f"{last.cut:,} of {last.num_output:,} tokens came back"
    if last.finish not in ("stop", "tool_calls"):
        yield f"ended by {safe(last.finish)}"
    for flag, count in oddities(calls).items():
        yield safe(flag) if count == len(calls) == 1 else f"{count:,} {safe(flag)}"


def _aligned(rows: Sequence[_Row]) -> Iterator[Line]:
    # Titles and texts go on past the first column; only chains decide how wide it is.
    chains = [row for row in rows if row.words is None]
    widths = [
        max(columns(heading), *(columns(_cell(row, at)) for row in chains))
        for at, heading in enumerate(_HEADINGS)
    ]
    # A column without entries is left out.
    shown = [at for at in range(len(_HEADINGS)) if any(row.cells[at][0] for row in chains)]
    yield [(_padded(at, _HEADINGS[at], widths[at]) + _GAP, "dim") for at in shown]
    for row in rows:
        if row.words is not None:
            yield [(row.graph, "dim"), *row.words]
            continue
        line: list[Piece] = [(row.graph, "dim")]
        for at in shown:
            text, style = row.cells[at]
            used = columns(row.graph) if at == 0 else 0
            line.append((_padded(at, text, widths[at] - used) + _GAP, style))
        yield line


def _cell(row: _Row, at: int) -> str:
    return row.graph + row.cells[at][0] if at == 0 else row.cells[at][0]


def _padded(at: int, text: str, width: int) -> str:
    blank = " " * (width - columns(text))
    return blank + text if at in _NUMBERS else text + blank


# Texts


def _texts(tree: Tree, chain: Chain, view: TreeViewOptions) -> Iterator[tuple[Piece, ...]]:
    """Each call's new messages, and its reply."""
    for node, share in zip(chain.calls, chain.shares, strict=True):
        if view.decode is not None:
            for segment in share.segments[:-1]:
                text = view.decode(tree.tokens(segment)[:TEXT_TOKENS].tolist())
                yield _quoted(node, tree.segments[segment].label, text, view)
        yield _quoted(node, "reply", said(node.message), view)


def said(message: Message) -> str:
    """A reply on one line: its thinking, its text, its tool calls."""
    parts = [f"({message.reasoning.strip()})"] if message.reasoning else []
    parts += [message.text.strip()] if message.text.strip() else []
    parts += [f"{call.name} {call.arguments}" for call in message.calls]
    return " | ".join(parts)


def _quoted(node: CallNode, label: str, text: str, view: TreeViewOptions) -> tuple[Piece, ...]:
    # A terminal cuts the line at its own width.
    shown = safe(text) if view.width else cut(safe(text), TEXT_COLUMNS)
    return ((f"  {node.id} {safe(label):<9} ", "dim"), (shown, None))


# What is beside the tree


def _without_output(tree: Tree) -> Iterator[Line]:
    ended = [(call, f"failed: {record.reason}") for call, record in tree.failed.items()]
    ended += [(call, "was opened, and its end is unknown") for call in tree.unfinished]
    if ended:
        yield []
    for call, what in sorted(ended):
        yield [(f"call {call} ", None), (safe(what), "red")]


def _leaves(found: Sequence[Candidate]) -> Iterator[Line]:
    yield [("leaves", "bold"), (f"  drawn with at most {MAX_TRAJECTORIES}, seed {SEED}", "dim")]
    if not found:
        yield [("  none", None)]
        return
    table = [("call", "role", "agent", "tokens", "targets", "drawn", "")]
    table += [
        (
            f"{one.call}",
            one.role,
            cut(safe(one.agent or ""), AGENT_COLUMNS),
            f"{one.tokens:,}",
            f"{one.targets:,}",
            "-" if one.drawn is None else f"{one.drawn}",
            "" if one.drawn is None else f"for {one.drawn_targets:,} targets",
        )
        for one in found
    ]
    widths = [max(columns(row[at]) for row in table) for at in range(len(table[0]))]
    for number, row in enumerate(table):
        cells = [_padded(at, text, widths[at]) + _GAP for at, text in enumerate(row)]
        styles: list[Style | None] = ["dim"] * len(cells) if number == 0 else [None] * len(cells)
        if number:
            styles[1] = _STYLES[found[number - 1].role]
        yield [("  ", None), *zip(cells, styles, strict=True)]
