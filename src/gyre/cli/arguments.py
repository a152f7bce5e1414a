"""What several commands take and say in the same way: values, tasks, journals, how far they are."""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyre.types.errors import ConfigError, visible

if TYPE_CHECKING:
    from gyre.simulator.request import ScenarioSource


def takes_values(parser: argparse.ArgumentParser, *, says: str = "in place of the file's") -> None:
    """`section.key=value`, as often as wanted."""
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help=says)


def takes_tasks(parser: argparse.ArgumentParser) -> None:
    says = "a folder or file of tasks, or MODULE:FUNCTION that makes them"
    parser.add_argument("tasks", metavar="TASKS", help=says)


def count(text: str, *, expected: str = "a number of 1 or more") -> int:
    """An argument that counts something."""
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"expected {expected}; found {text!r}")
    return found


def recorded_source(args: argparse.Namespace) -> "ScenarioSource":
    """The run of `--from-journal`; there is no file, so that the first word is a value too."""
    from gyre.journal.journal import path_of, read
    from gyre.scheduler.replay import EVENTS
    from gyre.simulator.from_journal import recorded
    from gyre.simulator.request import ScenarioSource

    place = args.from_journal
    found = recorded(read(path_of(place) if place.is_dir() else place, kinds=EVENTS))
    overrides = [text for text in (args.config, *args.overrides) if text is not None]
    return ScenarioSource(
        where=str(place), tables=found.tables, overrides=overrides, notes=found.notes
    )


@contextmanager
def optional_package(name: str, missing: str) -> Iterator[None]:
    """Imports inside may need a package that is not always installed; ConfigError without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(missing) from error


@contextmanager
def progress(*, without_terminal: bool = False) -> Iterator[Callable[[str], None]]:
    """Says a line in place of the last one on a terminal, and one below the other elsewhere."""
    import sys

    is_terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        # A journal from elsewhere names its run as it likes.
        text = visible(text)
        if is_terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif without_terminal and text:
            print(text, file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")


def with_later_values(args: argparse.Namespace, rest: Iterable[str]) -> list[str]:
    """What is left of `rest` when values that stand after an option are among the others."""
    values = getattr(args, "overrides", None)
    unknown = []
    for one in rest:
        if values is not None and "=" in one and not one.startswith("-"):
            values.append(one)
        else:
            unknown.append(one)
    return unknown


def is_given(args: argparse.Namespace, name: object) -> bool:
    """Whether a file's name is that of an argument, or lies in a folder that is one."""
    if not isinstance(name, str | bytes):
        return False
    path = Path(os.fsdecode(name)).absolute()
    given = {Path(text).absolute() for text in _texts(vars(args).values()) if text}
    return any(folder in given for folder in (path, *path.parents))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    """Everything that was said, of a `section.key=value` only the value."""
    for value in values:
        if isinstance(value, str | Path):
            text = str(value)
            yield from (text, text.partition("=")[2]) if "=" in text else (text,)
        elif isinstance(value, list):
            yield from _texts(value)
