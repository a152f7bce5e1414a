"""Characters that runs are drawn with, and times and sizes in few of them."""

import codecs
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gyre.observability.terminal.colors import ELLIPSIS, Style
from gyre.scheduler.cells import CellState
from gyre.simulator.timeline import EIGHTHS, SIGNS

FULL, WAITING, EMPTY = "█", "▒", "░"

_ROLES: Mapping[CellState, tuple[str, Style | None]] = {
    CellState.SERVING: ("rollout", "cyan"),
    CellState.ENTERING: ("entering", "yellow"),
    CellState.TRAINING: ("training", "green"),
    CellState.LEAVING: ("leaving", "yellow"),
    CellState.WAITING: ("waiting", "dim"),
    CellState.FENCED: ("fenced", "red"),
    CellState.DEAD: ("dead", "red"),
}
ROLES = {state: (SIGNS[word], word, style) for state, (word, style) in _ROLES.items()}
"""Sign, word and colour of what a cell does."""

_PLAIN = str.maketrans("▁▂▃▄▅▆▇█▒░·│└─•" + ELLIPSIS, "_.,-=+*#=-.|`-*~")

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
_SIZES = ("bytes", "kB", "MB", "GB", "TB")


def spelled(text: str, encoding: str | None) -> str:
    """The text as a stream of this encoding can show it: in ASCII unless it is Unicode."""
    if encoding is None or _is_unicode(encoding):
        return text
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def _is_unicode(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name.startswith("utf")
    except LookupError:
        return False


def bar(parts: Sequence[tuple[float, str]], *, whole: float, width: int) -> str:
    """Parts of a whole one after the other, rounded so that none pushes another out."""
    drawn, reached = "", 0.0
    for size, sign in parts:
        reached += max(0.0, size)
        until = round(min(1.0, reached / whole) * width) if whole > 0 else 0
        drawn += sign * (until - len(drawn))
    return drawn


def spark(values: Sequence[float], *, width: int) -> str:
    """A line of bars, one for a value or for the mean of a few, the lowest to the highest."""
    means = squeezed(values, width)
    low, high = min(means, default=0.0), max(means, default=0.0)
    return "".join(EIGHTHS[eighth(mean, low, high)] for mean in means)


def eighth(value: float, low: float, high: float) -> int:
    """From 0 to 7; in the middle where all values are one."""
    if high <= low:
        return 3
    return min(7, int((value - low) / (high - low) * 8))


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """At most so many, each the mean of its neighbours, all of them having a part."""
    many = len(values)
    if many <= width:
        return list(values)
    ends = [many * at // width for at in range(width + 1)]
    parts = [values[first:last] for first, last in pairwise(ends)]
    return [sum(part) / len(part) for part in parts]


def clock(seconds: float) -> str:
    """As a clock shows it."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def spoken(seconds: float) -> str:
    """In the unit that suits it."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 9.95 * MINUTE_S:
        return f"{seconds / MINUTE_S:.1f} min"
    if seconds < 99.5 * MINUTE_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.1f} days"


def sized(num_bytes: float) -> str:
    """In the unit that suits it."""
    unit = 0
    while num_bytes >= 999.5 and unit < len(_SIZES) - 1:
        num_bytes /= 1000
        unit += 1
    digits = 0 if unit == 0 or num_bytes >= 99.5 else 1
    return f"{num_bytes:.{digits}f} {_SIZES[unit]}"


def many(count: int, word: str, plural: str | None = None) -> str:
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"
