"""Text that somebody else wrote, so that a terminal shows all of it and obeys nothing in it."""

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but tabs and ends of lines, marks that turn the direction of text, halves of pairs."""


def visible(text: str, most: int | None = None) -> str:
    """What a terminal would obey is spelled out; at most so many letters of it, with its end cut.

    The result can be encoded, whatever the text held.
    """
    if most is not None and len(text) > most:
        text = f"{text[:most]}... ({len(text)} letters)"
    return _HIDDEN.sub(_spelled, text)


def visible_line(text: str, most: int | None = None) -> str:
    """The same in one line."""
    return visible(text, most).replace("\n", "\\n")


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
