"""What a page should show of a run: its journal and its logs, by nothing the page is made of."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
from tokenizers import Tokenizer

from gyre.controller.controller import JOURNAL_EVENTS
from gyre.journal.journal import path_of, read
from gyre.scheduler.messages import (
    AdmitGroup,
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineReturned,
    EnterTraining,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    Published,
    StepTaken,
)
from gyre.scheduler.replay import EVENTS, replay, shape_of
from gyre.storage import call_log
from gyre.types.call_records import CallClosed, LogOpened
from gyre.types.run_events import RewardGiven, StepMade

CLEAR_S = 1e-3
"""How far from any entry a moment is, so that rounding on the way to the page changes nothing."""


class Books:
    """A whole run, entry by entry."""

    def __init__(self, place):
        place = Path(place)
        reading = read(path_of(place) if place.is_dir() else place, kinds=JOURNAL_EVENTS)
        self.shape = shape_of(reading.header.shape)
        self.entries = [(entry.now, entry.event) for entry in reading.entries]
        events = [(now, event) for now, event in self.entries if isinstance(event, EVENTS)]
        orders = replay(self.shape, events).orders
        self.ordered = [
            (now, order) for (now, _), all_ in zip(events, orders, strict=True) for order in all_
        ]
        self.end_s = self.entries[-1][0]
        self.states = {
            cell: self._states(cell, events, orders) for cell in range(self.shape.num_cells)
        }

    def _states(self, cell, events, orders):
        """[time, state] of every change of a cell."""
        found, waits = [(0.0, "serving")], False
        for (now, event), all_ in zip(events, orders, strict=True):
            state = found[-1][1]
            match event:
                case CellTraining(cell=one) if one == cell and state == "entering":
                    found.append((now, "training"))
                case CellServing(cell=one) if one == cell and state == "leaving":
                    found.append((now, "waiting" if waits else "serving"))
                case Published():
                    waits = False
                    if state == "waiting":
                        found.append((now, "serving"))
                case CellDied(cell=one) if one == cell:
                    found.append((now, "dead"))
                case CellRecovered(cell=one) if one == cell:
                    found.append((now, "serving"))
                case EngineReturned(engine=one) if one == cell and state == "fenced":
                    found.append((now, "serving"))
            for order in all_:
                match order:
                    case EnterTraining(cell=one) if one == cell:
                        found.append((now, "entering"))
                    case LoadWeights(engine=one) if one == cell and found[-1][1] != "fenced":
                        found.append((now, "fenced"))
                    case LeaveTraining(cell=one, reason=reason) if one == cell:
                        waits = reason is LeaveReason.AFTER_BURST
                        found.append((now, "leaving"))
        return found

    def state(self, cell, at):
        changes = self.states[cell]
        return changes[bisect_right(changes, at, key=lambda one: one[0]) - 1][1]

    def spans(self, cell):
        """[from, until, state] of a cell, without those of no length."""
        changes = [*self.states[cell], (self.end_s, None)]
        spans = [(one[0], other[0], one[1]) for one, other in pairwise(changes)]
        return [one for one in spans if one[0] < one[1]]

    def facts(self, kind, at=float("inf")):
        return [fact for now, fact in self.entries if now <= at and isinstance(fact, kind)]

    def times(self, kind):
        return [now for now, fact in self.entries if isinstance(fact, kind)]

    def moments(self, *shares):
        """Times at these parts of the run, where nothing happens."""
        times = sorted({now for now, _ in self.entries})
        gaps = [(one, other) for one, other in pairwise(times) if other - one > 4 * CLEAR_S]
        wanted = [share * self.end_s for share in shares]
        return [
            (one + other) / 2
            for at in wanted
            for one, other in [min(gaps, key=lambda gap: abs(sum(gap) / 2 - at))]
        ]

    def is_clear(self, at):
        """Whether nothing happens about then."""
        return all(abs(now - at) > CLEAR_S for now, _ in self.entries)

    def tiles(self, at):
        """What is counted at a moment, as the page spells it."""
        size = self.shape.group_size
        admitted = len(self.facts(GroupAdmitted, at))
        version = len(self.facts(StepTaken, at))
        published = max((one.version for one in self.facts(Published, at)), default=0)
        ended = len(self.facts(ExecutionTerminated, at))
        closed = len(self.facts(ExecutionClosed, at))
        trained = sum(one.step < version for one in self.facts(GroupAssigned, at))
        open_ = sum(one.step >= version for one in self.facts(GroupAssigned, at))
        return {
            "step": f"{version} of {self.shape.steps}",
            "published": f"published {published}",
            "waterlevel": f"{admitted * size - ended:,}",
            "executions": f"{closed:,} closed",
            "dispatched": f"of {admitted * size:,} dispatched",
            "groups": f"{trained:,} trained",
            "batch": f"{open_} of {self.shape.groups_per_batch}",
        }

    def cells(self, at):
        return {cell: self.state(cell, at) for cell in self.states}

    def rewards(self):
        """By step: the mean of what was given to its groups."""
        given = defaultdict(list)
        for one in self.facts(RewardGiven):
            if one.score is not None:
                given[one.group].append(one.score)
        by_step = defaultdict(list)
        for one in self.facts(GroupAssigned):
            by_step[one.step] += given[one.group]
        return {step.step + 1: fmean(by_step[step.step]) for step in self.facts(StepMade)}

    def ages(self, at=float("inf")):
        """How many trained groups were how old (SPEC 1.4)."""
        version = {
            order.group: order.version for _, order in self.ordered if isinstance(order, AdmitGroup)
        }
        taken = len(self.facts(StepTaken, at))
        assigned = [one for one in self.facts(GroupAssigned) if one.step < taken]
        return Counter(one.step - version[one.group] for one in assigned)

    def spent_s(self, cell, *states):
        return sum(end - start for start, end, state in self.spans(cell) if state in states)

    def scores(self):
        """By execution."""
        return {one.execution: one.score for one in self.facts(RewardGiven)}

    def deaths(self):
        return [(now, fact.cell) for now, fact in self.entries if isinstance(fact, CellDied)]


@dataclass(frozen=True, slots=True)
class Call:
    """One call as its log has it."""

    told: tuple
    """Of each message that was new, but for a preface: who spoke, and its text."""
    output: list
    logprobs: list
    versions: list


class Recorded:
    """An execution from its call log and its folder."""

    def __init__(self, log):
        self.name = log.stem
        records = call_log.read(log).records
        opened = next(one for one in records if isinstance(one, LogOpened))
        decode = Tokenizer.from_file(str(Path(opened.model) / "tokenizer.json")).decode
        self.calls = {
            one.call: _call(one, decode) for one in records if isinstance(one, CallClosed)
        }
        self.folder = log.parents[1] / "attempts" / self.name

    @property
    def assessments(self):
        """Status, score and the state that each refers to, in twelve digits."""
        lines = (self.folder / "facts.jsonl").read_text().splitlines()
        found = [one["assessment"] for one in map(json.loads, lines) if one["fact"] == "assessed"]
        return [(one["status"], one["score"], one["reference"][:12]) for one in found]

    @property
    def changed(self):
        """Files that differ from the task's, with the lines that are new in them."""
        before = Path(json.loads((self.folder / "order.json").read_text())["task"]["files"])
        found = {}
        for path in (self.folder / "frozen").rglob("*"):
            name = path.relative_to(self.folder / "frozen")
            if path.is_file() and _lines(path) != _lines(before / name):
                found[str(name)] = [
                    line for line in _lines(path) if line not in _lines(before / name)
                ]
        return found


def _lines(path):
    return path.read_text().splitlines() if path.exists() else []


def _call(closed, decode):
    ids = np.frombuffer(closed.output, dtype=np.int32).tolist()
    versions = [span.version for span in closed.spans for _ in range(span.tokens)]
    return Call(
        told=tuple(
            (one.label, decode(np.frombuffer(one.ids, np.int32), skip_special_tokens=False))
            for one in closed.inputs[closed.parent == 0 :]
        ),
        output=ids,
        logprobs=np.frombuffer(closed.logprobs, dtype=np.float32).tolist(),
        versions=versions,
    )
