"""Styled, width-limited, terminal-safe text; the palette."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TextIO
from unicodedata import east_asian_width

Style = Literal["bold", "dim", "red", "green", "yellow", "blue", "magenta", "cyan"]
Piece = tuple[str, Style | None]
Line = Sequence[Piece]

_CODES: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
ELLIPSIS = "…"


def wants_colour(stream: TextIO) -> bool:
    """A terminal with colours, unless the environment forbids them."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not dull


def safe(text: str) -> str:
    """One printable line: what an agent or a tool wrote must not steer the terminal."""
    joined = text.replace("\r\n", "↵").replace("\n", "↵").replace("\t", " ")
    return "".join(char if char.isprintable() else "·" for char in joined)


def columns(text: str) -> int:
    """How wide a terminal shows a text."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits with an ellipsis."""
    return text if columns(text) <= width else _beginning(text, width - 1) + ELLIPSIS


def _beginning(text: str, space: int) -> str:
    kept = ""
    for char in text:
        space -= columns(char)
        if space < 0:
            break
        kept += char
    return kept


def fit(line: Line, width: int | None) -> list[Piece]:
    """The line without trailing blanks, cut where it would wrap."""
    pieces = list(line)
    while pieces and not pieces[-1][0].strip():
        pieces.pop()
    if pieces:
        text, style = pieces[-1]
        pieces[-1] = (text.rstrip(), style)
    if width is None or sum(columns(text) for text, _ in pieces) <= width:
        return pieces
    fitted: list[Piece] = []
    space = width - 1
    for text, style in pieces:
        if columns(text) > space:
            return [*fitted, (_beginning(text, space) + ELLIPSIS, style)]
        fitted.append((text, style))
        space -= columns(text)
    return fitted


def paint(line: Line, *, colour: bool) -> str:
    """The line as it is printed."""
    return "".join(
        f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour and style and text else text
        for text, style in line
    )


def printed(lines: Iterable[Line], *, width: int | None, colour: bool) -> list[str]:
    """All lines, ready for a terminal or a pipe."""
    return [paint(fit(line, width), colour=colour) for line in lines]


SHEET = Path(__file__).parents[1] / "dashboard" / "page" / "colours.css"
Theme = Literal["light", "dark"]

_COLOUR = re.compile(r"--(?P<name>[\w-]+): light-dark\((?P<light>#\w{6}), (?P<dark>#\w{6})\);")


@cache
def palette(theme: Theme = "light") -> dict[str, str]:
    """Every colour of a theme as #rrggbb, by its variable: c-training, ground, run colours..."""
    return {found["name"]: found[theme] for found in _COLOUR.finditer(SHEET.read_text())}


def colour(word: str, theme: Theme = "light") -> str:
    """Of a state, a cause, an ending or a series, in the words that panels use."""
    return palette(theme)[f"c-{slug(word)}"]


def slug(word: str) -> str:
    """As the page spells it in names of variables."""
    return re.sub(r"[^a-z0-9]+", "-", word.lower())
