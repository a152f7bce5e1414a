"""Live progress of a run: a block that a terminal redraws in place, or a line for each step.

Rule 1: showing never stops the run; a stream that cannot be written to is not written to again.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from statistics import fmean
from typing import TextIO

from gyre.observability.resource_use import OTHERS, UsageSample
from gyre.observability.resource_use import ROLES as ROLES_OF_USE
from gyre.observability.terminal.board import RunBoard
from gyre.observability.terminal.colors import Line, Piece, Style, columns, cut, fit, paint, safe
from gyre.observability.terminal.text import (
    EMPTY,
    FULL,
    GAP,
    ROLES,
    WAITING,
    bar,
    clock,
    many,
    sized,
    spark,
    spelled,
    spoken,
)
from gyre.scheduler.policies import Placement
from gyre.types.outcomes import Outcome

WIDTH = 80
LABEL, PICTURE = 12, 30
"""Columns of the first two columns; words have the rest."""
SPACED_CELLS = 14
"""More cells than that stand without gaps."""
REDRAW_S = 0.2
"""A terminal is not redrawn sooner, however much happens."""
LEAST_CORES = 0.05
"""Less is written as nothing."""
_ALL = 1 << 30


class Progress:
    """Writes a run board to a stream as facts come."""

    def __init__(self, stream: TextIO, board: RunBoard, *, colour: bool = True) -> None:
        """`colour` is for terminals; elsewhere there is none."""
        self.board = board
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._colour = colour
        self._is_mute = False
        self._drawn: list[int] = []
        """Columns of each line of the block that stands there."""
        self._drawn_s: float | None = None
        self._said = (board.version, board.published)
        self._num_rounds = len(board.held_out)
        self._has_begun = False
        self._ending = ""

    def record(self, now: float, fact: object) -> None:
        """Records the fact on the board, and redraws if it is time to."""
        self.board.record(now, fact)
        if self._is_terminal:
            self._redraw(now, is_due=self._ends())
        else:
            self._report(now)

    def tick(self, now: float) -> None:
        """Time passes; comes about once a second."""
        if self._is_terminal:
            self._redraw(now)

    def clear(self) -> None:
        """Takes the block away, for others to write; the next thing shown draws it again."""
        if self._is_terminal:
            self._write(self._back())
            self._drawn, self._drawn_s = [], None

    # On a terminal

    def _redraw(self, now: float, *, is_due: bool = False) -> None:
        soon = self._drawn_s is not None and now - self._drawn_s < REDRAW_S
        if self._is_mute or (soon and not is_due):
            return
        self._drawn_s = now
        width, height = terminal_size(self._stream)
        lines = [fit(line, width) for line in block(self.board, now)][: max(1, height - 1)]
        painted = [f"{paint(line, colour=self._colour)}\n" for line in lines]
        self._write(self._back(width) + spelled("".join(painted), self._stream.encoding))
        self._drawn = [sum(columns(text) for text, _ in line) for line in lines]

    def _back(self, width: int | None = None) -> str:
        """To where the block begins, with all below it erased; narrow terminals wrapped it."""
        width = terminal_size(self._stream)[0] if width is None else width
        rows = sum(max(1, -(-num_columns // width)) for num_columns in self._drawn)
        return f"\x1b[{rows}F\x1b[J" if rows else ""

    def _write(self, text: str) -> None:
        if self._is_mute or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._is_mute = True

    # Elsewhere

    def _report(self, now: float) -> None:
        """A line at the start, at every step and publication, and at the end."""
        board = self.board
        if board.is_started and not self._has_begun:
            self._has_begun = True
            if board.version == 0:
                self._say(now, opening(board))
        version, published = self._said
        self._said = (board.version, board.published)
        if board.version > version:
            self._say(now, step_line(board, now))
        if board.published > published:
            self._say(now, publication_line(board))
        if len(board.held_out) > self._num_rounds:
            self._num_rounds = len(board.held_out)
            self._say(now, f"held-out {held_out(board)}")
        if self._ends():
            self._say(now, self._ending)

    def _ends(self) -> bool:
        """Whether there is more to say of its end than was said."""
        before, self._ending = self._ending, ending(self.board) if self.board.is_over else ""
        return self._ending != before

    def _say(self, now: float, text: str) -> None:
        line = cut(f"{clock(now):>8}  {text}", WIDTH)
        self._write(spelled(line, self._stream.encoding) + "\n")


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns to use of where a stream goes, and lines there are."""
    try:
        found = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return WIDTH, _ALL
    # Some terminals do not know their size and say 0.
    return min(WIDTH, found.columns or WIDTH), found.lines or _ALL


def opening(board: RunBoard) -> str:
    """What is about to run."""
    shape = board.shape
    steps = "" if shape.steps is None else f"{many(shape.steps, 'step')} of "
    alone = f" + {len(shape.standalone_capacities)} alone" if shape.standalone_capacities else ""
    groups = f"{shape.groups_per_batch} x {shape.executions_per_group} executions"
    cells = f"{many(shape.num_cells, 'cell')}{alone}"
    return f"{safe(board.name)}: {steps}{groups}, {cells}, {placement_name(shape.placement)}"


def placement_name(placement: Placement) -> str:
    return type(placement).__name__.lower()


def step_line(board: RunBoard, now: float) -> str:
    """The last update in one line."""
    step = board.steps[-1]
    steps = board.shape.steps
    said = [f"step {_numbered(step.number, steps)}"]
    if step.reward is not None:
        said.append(f"reward {step.reward:.3f}")
    said.append(f"stale {step.staleness:.2f}")
    said.append(many(step.num_training, "cell"))
    said.append(spoken(step.took_s))
    if left_s := board.left_s(now):
        said.append(f"{spoken(left_s)} left")
    return "  ".join(said)


def publication_line(board: RunBoard) -> str:
    """The last publication in one line."""
    said = [f"version {board.published} published"]
    if (weights := board.publications.get(board.published)) is not None:
        said.append(f"{sized(weights.num_bytes)} in {spoken(weights.save_s + weights.load_s)}")
    said.append(f"waterlevel {board.waterlevel:,} of {board.capacity:,}")
    return "  ".join(said)


def _numbered(number: int, steps: int | None) -> str:
    """So that lines below each other stand as columns."""
    return f"{number}" if steps is None else f"{number:>{len(str(steps))}}/{steps}"


def block(board: RunBoard, now: float) -> Iterator[Line]:
    """A few lines of a label, a picture and words each; the board itself at this time."""
    shape = board.shape
    done = 0 if shape.steps is None else board.version
    picture = bar([(done, FULL), (_ALL, EMPTY)], whole=shape.steps or 1, width=PICTURE - 2)
    name = cut(safe(board.name), LABEL - 2)
    yield _line(name, [(picture, "green")], (_where(board, now), "bold"), style="bold")
    yield _line("cells", list(_cells(board)), (_roles(board), None))
    yield _line("rollout", list(_water(board)), (_demand(board), None))
    yield _line("batch", list(_batch(board)), (_groups(board), None))
    yield _line(
        "reward",
        [(spark(board.rewards, width=PICTURE - 2), "magenta")],
        (_reward(board), None),
    )
    if shape.evaluation_slots:
        scores = [result.mean for result in board.held_out.values() if result.mean is not None]
        picture = spark(scores, width=PICTURE - 2)
        yield _line("held-out", [(picture, "magenta")], (held_out(board), None))
    yield _line("staleness", [(_staleness(board), None)], (_switches(board), None))
    yield _line("executions", [(_closed(board), None)], (_outcomes(board), None))
    if board.use is not None:
        yield _line("use", [(_cores(board.use), None)], (_by_role(board.use), None))


def _line(label: str, picture: list[Piece], words: Piece, *, style: Style = "dim") -> Line:
    wide = sum(columns(text) for text, _ in picture)
    blank = " " * (LABEL - columns(label))
    return [(label + blank, style), *picture, (" " * max(1, PICTURE - wide), None), words]


def _where(board: RunBoard, now: float) -> str:
    step = f"step {_of(board.version, board.shape.steps)}"
    if board.is_over:
        return f"{step}, {ending(board)}, {clock(now)}"
    left_s = board.left_s(now)
    left = "" if left_s is None else f", {spoken(left_s)} left"
    return f"{step}  {clock(now)}{left}"


def ending(board: RunBoard) -> str:
    """Why it is over, where it is."""
    stopped = board.scheduler.stopped
    return safe(board.ended or (stopped.value if stopped is not None else "ended"))


def _of(number: int, steps: int | None) -> str:
    return f"{number}" if steps is None else f"{number} of {steps}"


def _cells(board: RunBoard) -> Iterator[Piece]:
    """A sign for each cell, core first; those that do the same side by side in one piece."""
    most = PICTURE - 2
    shown = board.states[:most]
    gap = GAP if len(shown) <= SPACED_CELLS else ""
    for state, together in groupby(shown):
        sign, _, style = ROLES[state]
        yield (sign + gap) * len(list(together)), style


def _roles(board: RunBoard) -> str:
    """In the order in which they stand."""
    found = Counter(board.states)
    return ", ".join(f"{number} {ROLES[state][1]}" for state, number in found.items())


def _water(board: RunBoard) -> Iterator[Piece]:
    """Of all capacity: what is taken, what is free, and what is away with its cells."""
    whole, width = board.full_capacity, PICTURE - 2
    taken = min(board.running, board.capacity)
    picture = bar(
        [(taken, FULL), (board.capacity - taken, EMPTY), (_ALL, GAP)], whole=whole, width=width
    )
    yield picture, "cyan"


def _demand(board: RunBoard) -> str:
    queued = f", {board.queued:,} queued" if board.queued else ""
    return f"waterlevel {board.waterlevel:,} of {board.capacity:,}{queued}"


def _batch(board: RunBoard) -> Iterator[Piece]:
    parts = [(board.num_assigned, FULL), (board.num_ready, WAITING), (_ALL, EMPTY)]
    yield bar(parts, whole=board.shape.groups_per_batch, width=PICTURE - 2), "yellow"


def _groups(board: RunBoard) -> str:
    batch = f"{board.num_assigned} of {many(board.shape.groups_per_batch, 'group')}"
    return f"{batch} pulled, {board.num_ready} ready"


def _reward(board: RunBoard) -> str:
    said = []
    if rewards := board.rewards:
        said.append(f"{rewards[-1]:.3f} at step {board.steps[-1].number}")
    if scores := board.scores_since:
        word = "since" if board.steps else "so far"
        said.append(f"{len(scores):,} {word}: {fmean(scores):.3f}")
    return "; ".join(said) or "none yet"


def held_out(board: RunBoard) -> str:
    """The last round of held-out evaluation, and how far the next one is."""
    said = []
    if board.held_out:
        last = list(board.held_out.values())[-1]
        score = "no score" if last.mean is None else f"{last.mean:.3f}"
        spread = "" if last.standard_error is None else f" +- {last.standard_error:.3f}"
        said.append(f"{score}{spread} at version {last.version}")
    if board.held_out_since:
        said.append(f"{len(board.held_out_since):,} since")
    return "; ".join(said) or "none yet"


def _staleness(board: RunBoard) -> str:
    found = "none yet" if board.staleness is None else f"{board.staleness:.2f}"
    predicted = board.predicted_staleness
    return found if predicted is None else f"{found}, {predicted:.2f} predicted"


def _switches(board: RunBoard) -> str:
    tally = board.tally
    return f"version {board.published} published; {tally.entered} in, {tally.left} home"


def _cores(use: UsageSample) -> str:
    """Of all its processes, and of accelerators where they were measured."""
    said = f"{use.all_cores:.1f} cores"
    return said if use.busy is None else f"{said}, devices {use.busy:.0%}"


def _by_role(use: UsageSample) -> str:
    """The roles that use most, and no more of them than fit."""
    cores = {who: use.cores(who) or 0.0 for who in (*ROLES_OF_USE, *OTHERS)}
    said = ""
    for who in sorted(cores, key=lambda who: -cores[who]):
        more = f"{said}{', ' if said else ''}{cores[who]:.1f} {who}"
        if cores[who] < LEAST_CORES or len(more) > WIDTH - LABEL - PICTURE:
            break
        said = more
    return said


def _closed(board: RunBoard) -> str:
    return f"{sum(board.outcomes.values()):,} closed"


def _outcomes(board: RunBoard) -> str:
    return ", ".join(
        f"{number:,} {outcome.value}"
        for outcome, number in board.outcomes.items()
        if number or outcome is Outcome.VALID
    )
