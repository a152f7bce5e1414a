"""Live progress of a run: a block that a terminal redraws in place, or a line for each step.

Rule 1: showing never stops the run; a stream that cannot be written to is not written to again.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from statistics import fmean
from typing import TextIO

from gyre.observability.history.state import RunState
from gyre.observability.resource_use import OTHERS, UsageSample
from gyre.observability.resource_use import ROLES as ROLES_OF_USE
from gyre.observability.staleness import in_the_long_run
from gyre.observability.terminal.colors import Line, Piece, Style, columns, cut, fit, paint, safe
from gyre.observability.terminal.text import (
    EMPTY,
    FULL,
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
from gyre.simulator.timeline import GAP, placement_name
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
    """Writes how a run stands to a stream as facts come."""

    def __init__(self, stream: TextIO, run: RunState, *, colour: bool = True) -> None:
        """`colour` is for terminals; elsewhere there is none."""
        self.run = run
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._colour = colour
        self._is_mute = False
        self._drawn: list[int] = []
        """Columns of each line of the block that stands there."""
        self._drawn_s: float | None = None
        self._said = (run.version, run.published, len(run.steps.rounds))
        self._has_begun = False
        self._ending = ""

    def record(self, now: float, fact: object) -> None:
        """Records the fact, and redraws if it is time to."""
        self.run.record(now, fact)
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
        lines = [fit(line, width) for line in block(self.run, now)][: max(1, height - 1)]
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
        run = self.run
        if run.is_started and not self._has_begun:
            self._has_begun = True
            if run.version == 0:
                self._say(now, opening(run))
        version, published, num_rounds = self._said
        self._said = (run.version, run.published, len(run.steps.rounds))
        if run.version > version:
            self._say(now, step_line(run, now))
        if run.published > published:
            self._say(now, publication_line(run))
        if len(run.steps.rounds) > num_rounds:
            self._say(now, f"held-out {held_out(run)}")
        if self._ends():
            self._say(now, self._ending)

    def _ends(self) -> bool:
        """Whether there is more to say of its end than was said."""
        before, self._ending = self._ending, ending(self.run) if self.run.is_over else ""
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


def opening(run: RunState) -> str:
    """What is about to run."""
    shape = run.shape
    steps = "" if shape.steps is None else f"{many(shape.steps, 'step')} of "
    alone = f" + {len(shape.standalone_capacities)} alone" if shape.standalone_capacities else ""
    groups = f"{shape.groups_per_batch} x {shape.executions_per_group} executions"
    cells = f"{many(shape.num_cells, 'cell')}{alone}"
    return f"{safe(run.name)}: {steps}{groups}, {cells}, {placement_name(shape.placement)}"


def step_line(run: RunState, now: float) -> str:
    """The last update in one line."""
    step = run.steps.rows[-1]
    steps = run.shape.steps
    # So that lines below each other stand as columns.
    number = f"{step.number}" if steps is None else f"{step.number:>{len(str(steps))}}/{steps}"
    said = [f"step {number}"]
    if step.reward is not None:
        said.append(f"reward {step.reward:.3f}")
    if step.staleness is not None:
        said.append(f"stale {step.staleness:.2f}")
    said.append(many(step.num_training, "cell"))
    said.append(spoken(step.took_s))
    if left_s := run.steps.left_s(now):
        said.append(f"{spoken(left_s)} left")
    return "  ".join(said)


def publication_line(run: RunState) -> str:
    """The last publication in one line."""
    said = [f"version {run.published} published"]
    if (weights := run.steps.weights_of(run.published)) is not None:
        said.append(f"{sized(weights.num_bytes)} in {spoken(weights.save_s + weights.load_s)}")
    said.append(_waterlevel(run))
    return "  ".join(said)


def block(run: RunState, now: float) -> Iterator[Line]:
    """A few lines of a label, a picture and words each; a run at this time."""
    shape = run.shape
    done = 0 if shape.steps is None else run.version
    picture = bar([(done, FULL), (_ALL, EMPTY)], whole=shape.steps or 1, width=PICTURE - 2)
    name = cut(safe(run.name), LABEL - 2)
    yield _line(name, [(picture, "green")], (_where(run, now), "bold"), style="bold")
    yield _line("cells", list(_cells(run)), (_roles(run), None))
    yield _line("rollout", list(_water(run)), (_demand(run), None))
    yield _line("batch", list(_batch(run)), (_groups(run), None))
    yield _line(
        "reward",
        [(spark([reward for _, reward in run.steps.rewards], width=PICTURE - 2), "magenta")],
        (_reward(run), None),
    )
    if shape.evaluation_slots:
        scores = [row.fact.mean for row in run.steps.rounds if row.fact.mean is not None]
        picture = spark(scores, width=PICTURE - 2)
        yield _line("held-out", [(picture, "magenta")], (held_out(run), None))
    yield _line("staleness", [(_staleness(run), None)], (_switches(run), None))
    closed = f"{sum(run.scheduler.ledger.outcomes.values()):,} closed"
    yield _line("executions", [(closed, None)], (_outcomes(run), None))
    if run.use is not None:
        yield _line("use", [(_cores(run.use), None)], (_by_role(run.use), None))


def _line(label: str, picture: list[Piece], words: Piece, *, style: Style = "dim") -> Line:
    wide = sum(columns(text) for text, _ in picture)
    blank = " " * (LABEL - columns(label))
    return [(label + blank, style), *picture, (" " * max(1, PICTURE - wide), None), words]


def _where(run: RunState, now: float) -> str:
    of = "" if run.shape.steps is None else f" of {run.shape.steps}"
    step = f"step {run.version}{of}"
    if run.is_over:
        return f"{step}, {ending(run)}, {clock(now)}"
    left_s = run.steps.left_s(now)
    left = "" if left_s is None else f", {spoken(left_s)} left"
    return f"{step}  {clock(now)}{left}"


def ending(run: RunState) -> str:
    """Why it is over, where it is."""
    return safe(run.reason or "ended")


def _cells(run: RunState) -> Iterator[Piece]:
    """A sign for each cell, core first; those that do the same side by side in one piece."""
    most = PICTURE - 2
    shown = run.fleet.states[:most]
    gap = GAP if len(shown) <= SPACED_CELLS else ""
    for state, together in groupby(shown):
        sign, _, style = ROLES[state]
        yield (sign + gap) * len(list(together)), style


def _roles(run: RunState) -> str:
    """In the order in which they stand."""
    found = Counter(run.fleet.states)
    return ", ".join(f"{number} {ROLES[state][1]}" for state, number in found.items())


def _water(run: RunState) -> Iterator[Piece]:
    """Of all capacity: what is taken, what is free, and what is away with its cells."""
    shape, capacity = run.shape, run.scheduler.engines.capacity
    serving = shape.num_cells if shape.placement.cells_serve else 0
    taken = min(run.scheduler.counters.running, capacity)
    picture = bar(
        [(taken, FULL), (capacity - taken, EMPTY), (_ALL, GAP)],
        whole=shape.standalone_capacity + serving * shape.cell_capacity,
        width=PICTURE - 2,
    )
    yield picture, "cyan"


def _demand(run: RunState) -> str:
    queued = run.scheduler.counters.queued
    return f"{_waterlevel(run)}{f', {queued:,} queued' if queued else ''}"


def _waterlevel(run: RunState) -> str:
    return f"waterlevel {run.scheduler.waterlevel:,} of {run.scheduler.engines.capacity:,}"


def _batch(run: RunState) -> Iterator[Piece]:
    burst = run.scheduler.burst
    parts = [(len(burst.assigned), FULL), (burst.ready, WAITING), (_ALL, EMPTY)]
    yield bar(parts, whole=run.shape.groups_per_batch, width=PICTURE - 2), "yellow"


def _groups(run: RunState) -> str:
    burst = run.scheduler.burst
    batch = f"{len(burst.assigned)} of {many(run.shape.groups_per_batch, 'group')}"
    return f"{batch} pulled, {burst.ready} ready"


def _reward(run: RunState) -> str:
    steps, said = run.steps, []
    if rewards := steps.rewards:
        said.append(f"{rewards[-1][1]:.3f} at step {steps.rows[-1].number}")
    if scores := steps.scores.values():
        word = "since" if steps.rows else "so far"
        said.append(f"{len(scores):,} {word}: {fmean(scores):.3f}")
    return "; ".join(said) or "none yet"


def held_out(run: RunState) -> str:
    """The last round of held-out evaluation, and how far the next one is."""
    said = []
    if run.steps.rounds:
        last = run.steps.rounds[-1].fact
        score = "no score" if last.mean is None else f"{last.mean:.3f}"
        spread = "" if last.standard_error is None else f" +- {last.standard_error:.3f}"
        said.append(f"{score}{spread} at version {last.version}")
    if run.scored:
        said.append(f"{len(run.scored):,} since")
    return "; ".join(said) or "none yet"


def _staleness(run: RunState) -> str:
    ages = run.scheduler.staleness
    found = "none yet" if ages.mean is None else f"{ages.mean:.2f}"
    predicted = in_the_long_run(run.shape, ages)
    return found if predicted is None else f"{found}, {predicted:.2f} predicted"


def _switches(run: RunState) -> str:
    counts = run.fleet.counts
    return f"version {run.published} published; {counts.entered} in, {counts.left} home"


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


def _outcomes(run: RunState) -> str:
    return ", ".join(
        f"{number:,} {outcome.value}"
        for outcome, number in run.scheduler.ledger.outcomes.items()
        if number or outcome is Outcome.VALID
    )
