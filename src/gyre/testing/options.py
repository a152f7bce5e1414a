"""Options of a pretender, as the text of a run file gives them."""

import math
from collections.abc import Collection, Mapping

from gyre.types.errors import ConfigError


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Raises ConfigError that names the first option nobody would read."""
    for key in options:
        if key not in known:
            message = f"{key}: unknown option; known here: {', '.join(sorted(known))}"
            raise ConfigError(message)


def number(options: Mapping[str, str], key: str, default: float) -> float:
    """A finite number of 0 or more."""
    if key not in options:
        return default
    try:
        found = float(options[key])
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        message = f"{key}: expected a number of 0 or more, found {options[key]!r}"
        raise ConfigError(message)
    return found


def positive(options: Mapping[str, str], key: str) -> float | None:
    """A number above 0, or nothing where it is not given."""
    if key not in options:
        return None
    found = number(options, key, 0.0)
    if not found:
        message = f"{key}: expected a number above 0, found {options[key]!r}"
        raise ConfigError(message)
    return found


def count(options: Mapping[str, str], key: str, default: int) -> int:
    """A whole number of 1 or more."""
    if key not in options:
        return default
    said = options[key]
    if not (said.isascii() and said.isdigit() and int(said)):
        message = f"{key}: expected a whole number of 1 or more, found {said!r}"
        raise ConfigError(message)
    return int(said)
