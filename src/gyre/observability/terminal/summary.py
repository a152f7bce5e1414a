"""A run at its end, on a page of text: what it learnt, who did what when, and what that saved."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from textwrap import wrap

from gyre.journal.journal import JournalContents, Resumed
from gyre.observability.history.cells import mean_phases
from gyre.observability.history.run import RunHistory
from gyre.observability.ledgers import ledgers
from gyre.observability.staleness import in_a_whole_run, in_the_long_run
from gyre.observability.terminal.charts import curve, timeline
from gyre.observability.terminal.colors import safe
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
from gyre.observability.what_if import SimulatedPlacement, minutes_of, steps_of
from gyre.scheduler.cells import CellState
from gyre.scheduler.messages import StopReason
from gyre.scheduler.policies import Boundary
from gyre.scheduler.replay import shape_of
from gyre.simulator.timeline import pace, placement_name
from gyre.types.errors import InternalError
from gyre.types.ids import CORE
from gyre.types.outcomes import Ending, Outcome

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
    history = RunHistory(shape_of(header.shape), name=header.run)
    notes = list(_notes(reading))
    try:
        history.record_all((entry.now, entry.event) for entry in reading.entries)
    except InternalError as error:
        notes.append(f"the journal's facts make no run after {spoken(history.now_s)}: {error}")
    notes += _unbalanced(reading)
    sections = {
        "": _head(history),
        "Reward by step": curve(history.steps.rewards, width=WIDTH - 2),
        "Held-out score by version": list(_held_out(history)),
        "Cells": timeline(history, width=WIDTH - 2),
        "Staleness": list(_staleness(history)),
        "Work": list(_work(history)),
        "Claims": list(_claims(history)),
        "Transitions": list(_transitions(history)),
        "The same work, simulated": list(_saved(history, compared_rows)),
        "Notes": [line for note in notes for line in wrap(note, WIDTH - 2)],
    }
    lines = [
        line
        for title, section in sections.items()
        if section
        for indent in ("  " if title else "",)
        for line in (*([title] if title else []), *(f"{indent}{line}" for line in section), "")
    ]
    return spelled("\n".join(line.rstrip() for line in lines[:-1]), encoding)


def _row(label: str, text: str) -> Iterator[str]:
    """A label and words, which go on below themselves."""
    for at, part in enumerate(wrap(text, WIDTH - 2 - LABEL) or [""]):
        yield f"{label if at == 0 else '':<{LABEL}}{part}"


def _head(history: RunHistory) -> list[str]:
    shape = history.shape
    steps = many(history.version, "step")
    if shape.steps is not None and history.version < shape.steps:
        steps = f"{history.version} of {many(shape.steps, 'step')}"
    ending = "NOT FINISHED" if history.reason is None else safe(history.reason)
    first = f"{safe(history.name)}: {steps} in {spoken(history.now_s)}, {ending}"
    alone = f" and {shape.standalone_capacity} standalone" if shape.standalone_capacities else ""
    second = (
        f"{placement_name(shape.placement)}, {pace(shape)}, mu {shape.steps_per_burst}; "
        f"{many(shape.num_cells, 'cell')} of {shape.cell_capacity} executions{alone}; "
        f"batches of {shape.groups_per_batch} x {shape.executions_per_group}"
    )
    return [*wrap(first, WIDTH), *wrap(second, WIDTH)]


def _held_out(history: RunHistory) -> Iterator[str]:
    rounds = sorted((row.fact for row in history.steps.rounds), key=lambda one: one.version)
    # The last round is always among them.
    stride = -(-len(rounds) // MOST_ROUNDS)
    for result in reversed(rounds[::-1][::stride] if rounds else []):
        valid = f"{result.num_valid} of {many(result.num_tasks, 'task')}"
        text = "no valid score" if result.mean is None else f"{result.mean:.3f}"
        spread = "" if result.standard_error is None else f" +- {result.standard_error:.3f}"
        yield from _row(f"version {result.version}", f"{text}{spread}, {valid}")


# Staleness


def _staleness(history: RunHistory) -> Iterator[str]:
    ages = history.scheduler.staleness
    if ages.mean is None:
        return
    yield from _row("mean", f"{ages.mean:.3f} over {many(ages.histogram.total(), 'group')}")
    if (predicted := in_the_long_run(history.shape, ages)) is not None:
        is_boundary = isinstance(history.shape.dispatch, Boundary)
        formula = "phi + (mu - 1)/2" if is_boundary else "(Q + R)/B + (mu - 1)/2"
        yield from _row("predicted", f"{predicted:.3f} in the long run, {formula}")
    whole = in_a_whole_run(history.shape)
    if whole is not None and history.scheduler.stopped is StopReason.FINISHED:
        steps = many(history.version, "step")
        text = f"{float(whole):.3f} exactly for {steps}, which begin fresh and leave none"
        yield from _row("", text)
    yield from _histogram(ages.histogram)
    yield from _row("identity", _identity(history))


def _identity(history: RunHistory) -> str:
    found = history.scheduler.staleness.identity(history.version)
    lag = f" + {found.lag:,} lag" if found.lag else ""
    sums = f"{found.consumed:,} consumed + {found.outstanding:,} outstanding"
    broken = [step.number for step in history.steps.rows if not step.identity.holds]
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


def _work(history: RunHistory) -> Iterator[str]:
    ledger, steps = history.scheduler.ledger, history.steps.rows
    yield from _row(
        "groups", f"{ledger.admitted:,} admitted, {ledger.trained:,} trained, {ledger.void:,} void"
    )
    if ended := _counted(history.endings):
        closed = _counted(ledger.outcomes) or "none"
        yield from _row("executions", f"{ended}; closed: {closed}")
    if steps:
        longest = max(steps, key=lambda one: one.took_s)
        text = f"{spoken(fmean(step.took_s for step in steps))} each, "
        text += f"longest {spoken(longest.took_s)} (step {longest.number})"
        yield from _row("steps", text)
    if made := [step.made for step in steps if step.made is not None]:
        reduced = sized(sum(step.reduced_bytes for step in made))
        yield from _row(
            "updates",
            f"{spoken(fmean(step.step_s for step in made))} each and "
            f"{spoken(fmean(step.reduce_s for step in made))} of summing; {reduced} of gradients, "
            f"{sum(step.is_clipped for step in made)} clipped",
        )
    packed = [step.packed for step in steps if step.packed is not None]
    if row_tokens := sum(pack.row_tokens for pack in packed):
        tokens = sum(pack.tokens for pack in packed)
        trajectories = sum(pack.trajectories for pack in packed)
        yield from _row(
            "tokens",
            f"{tokens:,} in {many(trajectories, 'trajectory', 'trajectories')}, "
            f"{sum(pack.targets for pack in packed):,} trained; "
            f"sharing prefixes left {1 - tokens / row_tokens:.0%} uncomputed",
        )
    if published := [row.fact for row in history.steps.publications]:
        yield from _row(
            "publications",
            f"{len(published)}, {sized(fmean(row.num_bytes for row in published))} each; "
            f"saved in {spoken(fmean(row.save_s for row in published))}, "
            f"loaded in {spoken(fmean(row.load_s for row in published))}",
        )


def _counted(found: Mapping[Outcome, int] | Mapping[Ending, int]) -> str:
    return ", ".join(f"{number:,} {kind.value}" for kind, number in found.items() if number)


def _claims(history: RunHistory) -> Iterator[str]:
    claims: Counter[int] = Counter()
    for step in history.steps.rows:
        claims.update({} if step.made is None else step.made.claims)
    total = claims.total()
    if not total:
        return
    shown = {cell: claims[cell] for cell in range(history.shape.num_cells)}
    rest = list(shown)[MOST_SHARES:]
    for cell, number in list(shown.items())[:MOST_SHARES]:
        yield _share("core" if cell == CORE else f"cell {cell}", number, total)
    if rest:
        yield _share(f"{len(rest)} others", sum(shown[cell] for cell in rest), total)
    by_satellites = (total - claims[CORE]) / total
    spent = sum(step.claim_s or 0.0 for step in history.steps.rows)
    timed = f" in {spoken(spent)} of cells' time" if spent else ""
    yield from _row("all", f"{total:,}{timed}, {by_satellites:.0%} of them by satellites")


def _share(label: str, number: int, total: int) -> str:
    drawn = bar([(number, FULL), (total, EMPTY)], whole=total, width=BAR)
    return f"{label:<{LABEL}}{drawn} {number:>6,} {number / total:>5.0%}"


# Transitions


def _transitions(history: RunHistory) -> Iterator[str]:
    counts = history.fleet.counts
    if not counts.entered and not counts.left:
        return
    yield from _row(
        "all",
        f"{counts.entered} into training, {counts.left} home; {counts.turned_back} turned back, "
        f"{counts.failed} failed, {many(counts.rescues, 'rescue')}",
    )
    for label, state, into in (
        ("in", CellState.ENTERING, True),
        ("home", CellState.LEAVING, False),
    ):
        timed = [row for row in history.fleet.transitions if row.fact.into_training is into]
        spans = [
            span.end_s - span.start_s
            for cell in range(history.shape.num_cells)
            for span in history.fleet.spans(cell, 0.0, history.now_s)
            if span.state is state
        ]
        if spans:
            means = mean_phases(timed).items()
            phases = ", ".join(f"{safe(phase)} {spoken(seconds)}" for phase, seconds in means)
            yield from _row(label, f"{spoken(fmean(spans))} each{': ' if phases else ''}{phases}")
    moved = many(counts.executions_moved, "execution")
    yield from _row("moved", ", ".join([moved, *_moved(history)]))


def _moved(history: RunHistory) -> Iterator[str]:
    """Sums over transitions, where there are any; what is in bytes is said in bytes."""
    total: dict[str, int] = defaultdict(int)
    for transition in history.fleet.transitions:
        for what, number in transition.fact.moved.items():
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


def _saved(history: RunHistory, rows: Sequence[SimulatedPlacement]) -> Iterator[str]:
    if not rows:
        return
    elastic = minutes_of(rows, ELASTIC)
    yield f"{'placement':<10}{'minutes':>8}  {'ratio':>6}  {'staleness':>9}  how"
    for row in rows:
        yield from _table_row(row, elastic)
    steps = steps_of(rows)
    taken = history.steps.rows
    if steps is not None and len(taken) >= steps:
        live = SimulatedPlacement(
            placement="live",
            how=f"{placement_name(history.shape.placement)}, as it happened, to step {steps}",
            minutes=taken[steps - 1].at_s / MINUTE_S,
            staleness=history.scheduler.staleness.mean if steps == len(taken) else None,
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
