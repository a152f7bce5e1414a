"""The colours of words, as the page's style sheet has them, for whoever else draws runs."""

import re
from functools import cache
from pathlib import Path
from typing import Literal

SHEET = Path(__file__).parents[1] / "dashboard" / "page" / "colours.css"
Theme = Literal["light", "dark"]

_COLOUR = re.compile(r"--(?P<name>[\w-]+): light-dark\((?P<light>#\w{6}), (?P<dark>#\w{6})\);")


@cache
def palette(theme: Theme = "light") -> dict[str, str]:
    """Every colour of a theme as #rrggbb, by its variable: c-training, ground, run colours..."""
    return {one["name"]: one[theme] for one in _COLOUR.finditer(SHEET.read_text())}


def colour(word: str, theme: Theme = "light") -> str:
    """Of a state, a cause, an ending or a series, in the words that panels use."""
    return palette(theme)[f"c-{slug(word)}"]


def slug(word: str) -> str:
    """As the page spells it in names of variables."""
    return re.sub(r"[^a-z0-9]+", "-", word.lower())
