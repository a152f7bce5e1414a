"""How pictures are made: letters, axes, colours of words, and the forms in which they are kept."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gyre.observability.terminal.colors import colour, palette
from gyre.observability.terminal.text import HOUR_S, MINUTE_S

WIDTH_IN = 9.0
DOTS_PER_INCH = 160
INK, FAINT, GRID, AXIS = (palette()[f"c-{name}"] for name in ("ink", "ink-2", "grid", "axis"))
GROUND = palette()["panel"]
HATCHES = {
    "entering": "/////",
    "leaving": "\\\\\\\\\\",
    "switching": "/////",
    "fenced": "xxxx",
    "empty seats": "----",
    "waiting": "||||",
    "timed-out": "/////",
}
"""Words whose areas are hatched too, because hue is not all that tells."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D")
RUN_COLOURS = 4
"""Runs that differ by colour; others differ by dash."""
MOST_MARKED = 60
"""Points of a curve that are marked one by one."""
ALIKE = 8.0
"""Runs up to so many times as long as another share an axis of time."""

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "gyre",
    # Letters as drawings, because no font is on every machine and their widths differ.
    "svg.fonttype": "path",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    # Names of runs are no formulas.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": AXIS,
    "axes.facecolor": GROUND,
    "figure.facecolor": GROUND,
    "axes.linewidth": 0.7,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.7,
    "lines.linewidth": 1.3,
}

_STRIPPED = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
"""Rules of a picture would hold for the whole page; the page has its own for all of them."""
_LONG = re.compile(r"\d+\.\d{3,}")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


@contextmanager
def settings() -> Iterator[None]:
    """A context in which pictures have the report's settings, and not the user's own."""
    with mpl.rc_context(), warnings.catch_warnings():
        # A name may have letters that the font has not; the page spells it with others.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield


def figure(height_in: float) -> Figure:
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def stacked(heights_in: Sequence[float], *, beside_in: float) -> tuple[Figure, list[Axes]]:
    """A picture of panels below each other; `beside_in` is what axes and titles take in all."""
    made = figure(sum(heights_in) + beside_in)
    grid = made.subplots(len(heights_in), 1, squeeze=False, height_ratios=heights_in)
    return made, list(grid[:, 0])


# The forms in which it is kept


def settled(made: Figure) -> Figure:
    """The picture with everything in its place, so that its forms agree on it."""
    made.draw_without_rendering()
    made.set_layout_engine("none")
    return made


def png(made: Figure) -> bytes:
    """In the light theme; the same picture gives the same bytes."""
    held = BytesIO()
    made.savefig(held, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return held.getvalue()


def svg(made: Figure, *, name: str) -> str:
    """To be put into a page: names are its own, and colours are variables of the page's theme."""
    held = StringIO()
    made.savefig(held, format="svg", metadata={"Date": None}, transparent=True)
    drawn = held.getvalue()
    drawn = _STRIPPED.sub("", drawn[drawn.index("<svg") :])
    drawn = _LONG.sub(lambda one: _shortened(one[0]), drawn)
    drawn = re.sub(r"\s+", " ", drawn).replace("> <", "><")
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    known = themed()
    return _COLOUR.sub(lambda one: f"var({known[one[0]][0]})" if one[0] in known else one[0], drawn)


def _shortened(number: str) -> str:
    """A hundredth of a point cannot be seen; what is below one may be a scale."""
    return f"{float(number):.2f}" if float(number) >= 1 else f"{float(number):.5f}"


def themed() -> dict[str, tuple[str, str]]:
    """By colour of the light theme: the variable that stands for it, and its colour in the dark."""
    light, dark = palette("light"), palette("dark")
    return {light[name]: (f"--x{light[name][1:]}", dark[name]) for name in reversed(light)}


# Words and runs


def filled(word: str) -> dict[str, Any]:
    """How the area of a word is drawn."""
    look: dict[str, Any] = {"facecolor": colour(word), "linewidth": 0.0}
    if word in HATCHES:
        look |= {"hatch": HATCHES[word], "edgecolor": GROUND}
    return look


def run_colour(place: int | None, word: str) -> str:
    """A run alone has the colour of the word that is drawn, others have their own."""
    return colour(word if place is None else f"run {place % RUN_COLOURS}")


def run_line(place: int | None, word: str) -> dict[str, Any]:
    """How the curve of a run is drawn."""
    number = place or 0
    dash = DASHES[(number + number // RUN_COLOURS) % len(DASHES)]
    return {"color": run_colour(place, word), "linestyle": dash}


def run_dots(place: int | None, num_points: int) -> dict[str, Any]:
    """How its points are marked, where they are few enough to be told apart."""
    marker = MARKERS[(place or 0) % len(MARKERS)]
    return {"marker": marker if num_points <= MOST_MARKED else "", "markersize": 3.2}


# Axes


def unit_of(longest_s: float) -> tuple[float, str]:
    """Seconds of the unit that suits an axis, and its name."""
    if longest_s < 3 * MINUTE_S:
        return 1.0, "seconds"
    return (MINUTE_S, "minutes") if longest_s < 3 * HOUR_S else (HOUR_S, "hours")


def time_axes(grid: Sequence[Axes], lengths_s: Sequence[float]) -> list[float]:
    """Seconds of the unit of each panel's axis of time; all have one scale if runs are alike."""
    longest_s = max(lengths_s)
    is_shared = longest_s <= ALIKE * min(lengths_s)
    units = []
    for axes, length_s in zip(grid, lengths_s, strict=True):
        end_s = longest_s if is_shared else length_s
        unit_s, unit = unit_of(end_s)
        axes.set_xlim(0, end_s / unit_s)
        if axes is grid[-1] or not is_shared:
            axes.set_xlabel(unit)
        else:
            axes.tick_params(axis="x", labelbottom=False)
        units.append(unit_s)
    return units


def bars_of(axes: Axes, names: Sequence[str], *, stride: int = 1) -> None:
    """A row for each name, the first on top; of many rows only every so many-th is named."""
    axes.set_yticks(range(0, len(names), stride), names[::stride])
    axes.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def from_zero(axes: Axes) -> None:
    """The whole of a quantity is seen, with space above its highest value."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.04)


def same_height(grid: Sequence[Axes]) -> None:
    """Panels from 0 have one scale if they are alike."""
    tops = [axes.get_ylim()[1] for axes in grid]
    if max(tops) <= ALIKE * min(tops):
        for axes in grid:
            axes.set_ylim(0, max(tops))


def note(axes: Axes, text: str, at: tuple[float, float], *, xycoords: Any = "data") -> None:
    """Writes faintly, a little to the right of a point."""
    look: dict[str, Any] = {"va": "center", "fontsize": 8, "color": FAINT}
    axes.annotate(text, at, (4, 0), xycoords, "offset points", **look)


def legend(axes: Axes, handles: Sequence[Any] | None = None, *, most: int = 8) -> None:
    """Above the right end of its panel, where it hides nothing."""
    found = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    if found:
        axes.legend(
            handles=found,
            ncols=min(most, len(found)),
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.1,
            handlelength=1.6,
            columnspacing=1.1,
            handletextpad=0.5,
        )


def whole_numbers(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    for axis in [one for one, is_asked in ((axes.xaxis, x), (axes.yaxis, y)) if is_asked]:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def percent(axes: Axes, *, x: bool = False) -> None:
    axis = axes.xaxis if x else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f}%"))


def numbers(values: Sequence[float | None]) -> list[float]:
    """Absent ones as gaps of a curve."""
    return [float("nan") if value is None else float(value) for value in values]
