"""A run at its end, on a page of text: what it learnt, who did what when, and what that saved."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from textwrap import wrap

from gyre.journal.reader import JournalContents, Resumed
from gyre.observability.ledgers import ledgers
from gyre.observability.staleness import in_a_whole_run
from gyre.observability.terminal.board import RunBoard
from gyre.observability.terminal.charts import curve, timeline
from gyre.observability.terminal.colors import safe
from gyre.observability.terminal.progress import placement_name
from gyre.observability.terminal.text import (
    EMPTY,
    FULL,
    MINUTE_S,
    bar,
    many,
    sized,
    spelled,
    spoken,
)
from gyre.observability.what_if import SimulatedPlacement
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import StopReason
from gyre.scheduler.policies import Boundary
from gyre.scheduler.replay import shape_of
from gyre.types.errors import InternalError
from gyre.types.ids import CORE
from gyre.types.outcomes import Ending, Outcome
from gyre.types.run_events import TransitionTimed

WIDTH = 80
ELASTIC = "elastic"
"""What other placements are measured by."""
LABEL = 13
BAR = 24
MOST_AGES = 8
"""Rows of the histogram of staleness; the rest share the last."""
MOST_SHARES = 16
"""Rows of claims by cell."""
MOST_ROUNDS = 12
"""Rows of held-out evaluation, spread over the run."""
MOST_FAULTS = 4
"""Notes of ledgers that do not balance."""


def summary(
    reading: JournalContents,
    compared_rows: Sequence[SimulatedPlacement] = (),
    *,
    encoding: str | None = None,
) -> str:
    """The page; `encoding` is that of the stream it is for, None for one that has all signs."""
    header = reading.header
    if header is None:
        return f"{reading.path}: ends before its header; nothing is recorded"
    board = RunBoard(shape_of(header.shape), name=header.run)
    notes = list(_notes(reading))
    try:
        board.record_all((entry.now, entry.event) for entry in reading.entries)
    except InternalError as error:
        notes.append(f"the journal's facts make no run after {spoken(board.now)}: {error}")
    notes += _unbalanced(reading)
    sections = {
        "": _head(board),
        "Reward by step": _rewards(board),
        "Held-out score by version": list(_held_out(board)),
        "Cells": timeline(board, width=WIDTH - 2),
        "Staleness": list(_staleness(board)),
        "Work": list(_work(board)),
        "Claims": list(_claims(board)),
        "Transitions": list(_transitions(board)),
        "The same work, simulated": list(_saved(board, compared_rows)),
        "Notes": [line for note in notes for line in wrap(note, WIDTH - 2)],
    }
    lines = [
        line
        for title, section in sections.items()
        if section
        for line in (*([title] if title else []), *_indented(section, bool(title)), "")
    ]
    return spelled("\n".join(line.rstrip() for line in lines[:-1]), encoding)


def _indented(lines: Sequence[str], is_inside: bool) -> list[str]:
    return [f"  {line}" if is_inside else line for line in lines]


def _row(label: str, text: str) -> Iterator[str]:
    """A label and words, which go on below themselves."""
    for at, part in enumerate(wrap(text, WIDTH - 2 - LABEL) or [""]):
        yield f"{label if at == 0 else '':<{LABEL}}{part}"


def _head(board: RunBoard) -> list[str]:
    shape = board.shape
    steps = many(board.version, "step")
    if shape.steps is not None and board.version < shape.steps:
        steps = f"{board.version} of {many(shape.steps, 'step')}"
    first = f"{safe(board.name)}: {steps} in {spoken(board.now)}, {_ending(board)}"
    alone = f" and {shape.standalone_capacity} standalone" if shape.standalone_capacities else ""
    pace = (
        f"phi {shape.dispatch.extra_dispatch:g}"
        if isinstance(shape.dispatch, Boundary)
        else (f"depth {shape.dispatch.depth}")
    )
    second = (
        f"{placement_name(shape.placement)}, {pace}, mu {shape.steps_per_burst}; "
        f"{many(shape.num_cells, 'cell')} of {shape.cell_capacity} executions{alone}; "
        f"batches of {shape.groups_per_batch} x {shape.executions_per_group}"
    )
    return [*wrap(first, WIDTH), *wrap(second, WIDTH)]


def _ending(board: RunBoard) -> str:
    stopped = board.scheduler.stopped
    if board.ended is not None:
        return safe(board.ended)
    return "NOT FINISHED" if stopped is None else stopped.value


def _rewards(board: RunBoard) -> list[str]:
    found = [(step.number, step.reward) for step in board.steps if step.reward is not None]
    return curve(found, width=WIDTH - 2)


def _held_out(board: RunBoard) -> Iterator[str]:
    rounds = sorted(board.held_out.values(), key=lambda one: one.version)
    # The last round is always among them.
    stride = -(-len(rounds) // MOST_ROUNDS)
    for one in reversed(rounds[::-1][::stride] if rounds else []):
        valid = f"{one.num_valid} of {many(one.num_tasks, 'task')}"
        text = "no valid score" if one.mean is None else f"{one.mean:.3f}"
        spread = "" if one.standard_error is None else f" +- {one.standard_error:.3f}"
        yield from _row(f"version {one.version}", f"{text}{spread}, {valid}")


# Staleness


def _staleness(board: RunBoard) -> Iterator[str]:
    ages = board.scheduler.staleness
    if ages.mean is None:
        return
    yield from _row("mean", f"{ages.mean:.3f} over {many(ages.histogram.total(), 'group')}")
    if (predicted := board.predicted_staleness) is not None:
        is_boundary = isinstance(board.shape.dispatch, Boundary)
        formula = "phi + (mu - 1)/2" if is_boundary else "(Q + R)/B + (mu - 1)/2"
        yield from _row("predicted", f"{predicted:.3f} in the long run, {formula}")
    whole = in_a_whole_run(board.shape)
    if whole is not None and board.scheduler.stopped is StopReason.FINISHED:
        steps = many(board.version, "step")
        text = f"{float(whole):.3f} exactly for {steps}, which begin fresh and leave none"
        yield from _row("", text)
    yield from _histogram(ages.histogram)
    yield from _row("identity", _identity(board))


def _identity(board: RunBoard) -> str:
    found = board.identity
    lag = f" + {found.lag:,} lag" if found.lag else ""
    sums = f"{found.consumed:,} consumed + {found.outstanding:,} outstanding"
    broken = [step.number for step in board.steps if not step.identity.holds]
    held = f"BROKEN at step {broken[0]}" if broken else "exact at every step"
    return f"{sums} = {found.survivors:,} survivors{lag}; {held}"


def _histogram(ages: Mapping[int, int]) -> Iterator[str]:
    found = sorted(ages.items())
    shown = [(f"age {age}", groups) for age, groups in found[:MOST_AGES]]
    if rest := found[MOST_AGES:]:
        shown.append((f"{rest[0][0]} and more", sum(groups for _, groups in rest)))
    most = max(groups for _, groups in shown)
    for label, groups in shown:
        drawn = bar([(groups, FULL)], whole=most, width=BAR)
        yield f"{label:<{LABEL}}{drawn:<{BAR}} {groups:,}"


# Work


def _work(board: RunBoard) -> Iterator[str]:
    ledger, tally = board.scheduler.ledger, board.tally
    yield from _row(
        "groups", f"{ledger.admitted:,} admitted, {ledger.trained:,} trained, {ledger.void:,} void"
    )
    if ended := _counted(tally.endings):
        yield from _row("executions", f"{ended}; closed: {_counted(board.outcomes) or 'none'}")
    if board.steps:
        took = [step.took_s for step in board.steps]
        longest = max(board.steps, key=lambda one: one.took_s)
        text = f"{spoken(fmean(took))} each, longest {spoken(longest.took_s)} (step "
        yield from _row("steps", f"{text}{longest.number})")
    if made := [step.made for step in board.steps if step.made is not None]:
        reduced = sized(sum(step.reduced_bytes for step in made))
        yield from _row(
            "updates",
            f"{spoken(fmean(step.step_s for step in made))} each and "
            f"{spoken(fmean(step.reduce_s for step in made))} of summing; {reduced} of gradients, "
            f"{sum(step.is_clipped for step in made)} clipped",
        )
    if tally.row_tokens:
        saved = 1 - tally.tokens / tally.row_tokens
        yield from _row(
            "tokens",
            f"{tally.tokens:,} in {many(tally.trajectories, 'trajectory', 'trajectories')}, "
            f"{tally.targets:,} trained; sharing prefixes left {saved:.0%} uncomputed",
        )
    if published := list(board.publications.values()):
        yield from _row(
            "publications",
            f"{len(published)}, {sized(fmean(row.num_bytes for row in published))} each; "
            f"saved in {spoken(fmean(row.save_s for row in published))}, "
            f"loaded in {spoken(fmean(row.load_s for row in published))}",
        )


def _counted(found: Mapping[Outcome, int] | Mapping[Ending, int]) -> str:
    return ", ".join(f"{number:,} {one.value}" for one, number in found.items() if number)


def _claims(board: RunBoard) -> Iterator[str]:
    claims = board.tally.claims
    total = claims.total()
    if not total:
        return
    shown = {cell: claims[cell] for cell in range(board.shape.num_cells)}
    rest = list(shown)[MOST_SHARES:]
    for cell, number in list(shown.items())[:MOST_SHARES]:
        yield _share("core" if cell == CORE else f"cell {cell}", number, total)
    if rest:
        yield _share(f"{len(rest)} others", sum(shown[cell] for cell in rest), total)
    by_satellites = (total - claims[CORE]) / total
    spent = sum(board.tally.claim_s.values())
    timed = f" in {spoken(spent)} of cells' time" if spent else ""
    yield from _row("all", f"{total:,}{timed}, {by_satellites:.0%} of them by satellites")


def _share(label: str, number: int, total: int) -> str:
    drawn = bar([(number, FULL), (total, EMPTY)], whole=total, width=BAR)
    return f"{label:<{LABEL}}{drawn} {number:>6,} {number / total:>5.0%}"


# Transitions


def _transitions(board: RunBoard) -> Iterator[str]:
    tally = board.tally
    if not tally.entered and not tally.left:
        return
    yield from _row(
        "all",
        f"{tally.entered} into training, {tally.left} home; {tally.turned_back} turned back, "
        f"{tally.failed} failed, {many(tally.rescues, 'rescue')}",
    )
    for label, state, into in (
        ("in", CellState.ENTERING, True),
        ("home", CellState.LEAVING, False),
    ):
        timed = [
            transition
            for transition in board.transitions.values()
            if transition.into_training is into
        ]
        spans = [
            span.end_s - span.start_s
            for cell in range(board.shape.num_cells)
            for span in board.spans(cell)
            if span.state is state
        ]
        if spans:
            phases = _phases(timed)
            yield from _row(label, f"{spoken(fmean(spans))} each{': ' if phases else ''}{phases}")
    moved = many(tally.executions_moved, "execution")
    yield from _row("moved", ", ".join([moved, *_moved(board)]))


def _phases(timed: Sequence[TransitionTimed]) -> str:
    """Mean seconds by phase, in the order in which they come."""
    spent: dict[str, list[float]] = defaultdict(list)
    for transition in timed:
        for phase, seconds in transition.phases.items():
            spent[phase].append(seconds)
    return ", ".join(f"{safe(phase)} {spoken(fmean(each))}" for phase, each in spent.items())


def _moved(board: RunBoard) -> Iterator[str]:
    """Sums over transitions, where there are any; what is in bytes is said in bytes."""
    total: dict[str, int] = defaultdict(int)
    for transition in board.transitions.values():
        for what, number in transition.moved.items():
            total[what] += number
    for what, number in total.items():
        name = safe(what)
        if not number:
            continue
        if name.endswith("bytes"):
            of = name.removesuffix("bytes").strip("_").replace("_", " ")
            yield f"{sized(number)}{f' {of}' if of else ''}"
        else:
            yield f"{number:,} {name.replace('_', ' ')}"


# What was saved


def _saved(board: RunBoard, rows: Sequence[SimulatedPlacement]) -> Iterator[str]:
    if not rows:
        return
    elastic = next((row.minutes for row in rows if row.placement == ELASTIC), None)
    yield f"{'placement':<10}{'minutes':>8}  {'ratio':>6}  {'staleness':>9}  how"
    for row in rows:
        yield from _table_row(row, elastic)
    steps = next((row.steps for row in rows if row.steps is not None), None)
    if steps is not None and len(board.steps) >= steps:
        live = SimulatedPlacement(
            placement="live",
            how=f"{placement_name(board.shape.placement)}, as it happened, to step {steps}",
            minutes=board.steps[steps - 1].at_s / MINUTE_S,
            staleness=board.staleness if steps == len(board.steps) else None,
        )
        yield from _table_row(live, elastic)
    if elastic and (found := list(beside(rows, elastic))):
        yield from wrap(f"Elastic takes {' and '.join(found)}.", WIDTH - 2)


def beside(rows: Sequence[SimulatedPlacement], elastic: float) -> Iterator[str]:
    """How much less time Elastic takes than each other placement that finished."""
    for row in rows:
        if row.minutes and row.placement != ELASTIC:
            part = 1 - elastic / row.minutes
            compared = f"{part:.0%} less" if part >= 0 else f"{-part:.0%} more"
            yield f"{compared} time than {row.placement}"


def _table_row(one: SimulatedPlacement, elastic: float | None) -> Iterator[str]:
    minutes = "-" if one.minutes is None else f"{one.minutes:,.{2 if one.minutes < 1000 else 1}f}"
    ratio = f"{one.minutes / elastic:.2f}x" if one.minutes is not None and elastic else "-"
    staleness = "-" if one.staleness is None else f"{one.staleness:.2f}"
    start = f"{one.placement:<10}{minutes:>8}  {ratio:>6}  {staleness:>9}  "
    for at, part in enumerate(wrap(safe(one.how), WIDTH - 2 - len(start)) or [""]):
        yield f"{start if at == 0 else ' ' * len(start)}{part}"


def _notes(reading: JournalContents) -> Iterator[str]:
    if resumed := sum(isinstance(entry.event, Resumed) for entry in reading.entries):
        yield f"the run was resumed {'once' if resumed == 1 else f'{resumed} times'}"
    if reading.torn_bytes:
        yield f"the journal's last {reading.torn_bytes} bytes are torn and were left out"
    if reading.num_unknown:
        yield f"{reading.num_unknown} facts of kinds that this Gyre does not know were skipped"


def _unbalanced(reading: JournalContents) -> list[str]:
    found = ledgers(reading)
    faults = (
        [] if found is None else [f"the ledgers do not balance: {fault}" for fault in found.faults]
    )
    rest = len(faults) - MOST_FAULTS
    return faults if rest <= 0 else [*faults[:MOST_FAULTS], f"and {many(rest, 'such fault')} more"]
