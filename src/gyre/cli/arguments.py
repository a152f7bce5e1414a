"""What is given on a command line in the same way to many commands: values, and paths."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def takes_values(parser: argparse.ArgumentParser, *, says: str = "in place of the file's") -> None:
    """`section.key=value`, as often as wanted."""
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help=says)


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
    path = _whole(name.decode(errors="surrogateescape") if isinstance(name, bytes) else name)
    given = {_whole(text) for text in _texts(vars(args).values()) if text}
    return any(folder in given for folder in (path, *path.parents))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    """Everything that was said, of a `section.key=value` only the value."""
    for value in values:
        if isinstance(value, str | Path):
            text = str(value)
            yield from (text, text.partition("=")[2]) if "=" in text else (text,)
        elif isinstance(value, list):
            yield from _texts(value)


def _whole(text: str) -> Path:
    return Path(text).absolute()
