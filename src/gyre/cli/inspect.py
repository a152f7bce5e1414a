"""Show the trees of a run: roles, tokens, shared prefixes, and the reason for each fork."""

import argparse
from collections.abc import Callable
from pathlib import Path

from gyre.types.errors import LogDamaged


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder, or one call log")
    add("execution", nargs="?", metavar="EXECUTION", help="show this one only (default: all)")
    add("--leaves", action="store_true", help="list candidate leaves and what a draw takes")
    add("--text", action="store_true", help="show the beginning of each message and reply")
    add("--json", action="store_true", help="one JSON object per execution, a line each")


def run(args: argparse.Namespace) -> None:
    from gyre.trajectory.loading import find

    paths = find(args.run, args.execution)
    show = _facts if args.json else _drawing(args)
    damaged: list[LogDamaged] = []
    for path in paths:
        try:
            lines = show(path)
        except LogDamaged as error:
            # The others are still worth seeing; the command fails after them.
            damaged.append(error)
            continue
        print(*lines, sep="\n")
    if damaged:
        many = f"{len(damaged)} of {len(paths)} logs are damaged, the first: " if paths[1:] else ""
        raise LogDamaged(f"{many}{damaged[0]}")


def _facts(path: Path) -> list[str]:
    import json

    from gyre.observability.inspect.tree_summary import facts
    from gyre.trajectory.loading import load

    return [json.dumps(facts(load(path)), ensure_ascii=False)]


def _drawing(args: argparse.Namespace) -> Callable[[Path], list[str]]:
    from gyre.observability.inspect.tree_text import TreeViewOptions, lines
    from gyre.trajectory.loading import load

    width, colour = _terminal()

    def draw(path: Path) -> list[str]:
        loaded = load(path)
        tree, notes = loaded.tree, []
        decode = None
        if args.text:
            from gyre.observability.dashboard.execution_view import vocabulary_of

            model = tree.opened.model if tree.opened else "an unknown place"
            vocabulary = vocabulary_of(model)
            decode = None if vocabulary is None else vocabulary.decode
            if decode is None:
                notes = [f"  no tokenizer at {model}: of texts, only replies are shown"]
        view = TreeViewOptions(
            width=width, colour=colour, leaves=args.leaves, text=args.text, decode=decode
        )
        drawn = lines(tree, execution=loaded.execution, torn_bytes=loaded.torn_bytes, view=view)
        return [*drawn, *notes, ""]

    return draw


def _terminal() -> tuple[int | None, bool]:
    """Columns and whether to colour; a pipe or a file gets whole lines without colours."""
    import shutil
    import sys

    from gyre.observability.terminal.colors import wants_colour

    if not sys.stdout.isatty():
        return None, False
    return shutil.get_terminal_size().columns, wants_colour(sys.stdout)
