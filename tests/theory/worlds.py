"""Small worlds that the closed forms are about, and what repeated runs of one say.

They share no code with the simulator: a heap of finish times, a list of ready groups, one trainer.
"""

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from statistics import mean, stdev

import numpy as np


@dataclass
class Group:
    number: int
    version: int
    admitted_after: int
    """Publications before its admission."""
    admitted_at: float
    duration: float
    finished_at: float = 0.0
    consumed_in: int = 0
    staleness: int = 0


@dataclass
class Seen:
    """What a run left, bursts counted from 1."""

    consumed: list = field(default_factory=list)
    admitted: list = field(default_factory=list)
    published_at: list = field(default_factory=lambda: [0.0])
    started_at: list = field(default_factory=lambda: [0.0])
    ready: list = field(default_factory=list)
    """R at each publication."""
    ages: list = field(default_factory=list)
    """Of outstanding groups by trainer version, just after each publication."""

    def after(self, warm_up):
        return [one for one in self.consumed if one.consumed_in > warm_up]

    def staleness(self, warm_up=0):
        return mean(one.staleness for one in self.after(warm_up))

    def latency(self, warm_up=0):
        """L of the groups that were consumed; their mean wobbles less around a step's time."""
        return mean(one.duration for one in self.after(warm_up))

    def mean_ready(self, warm_up=0):
        return mean(self.ready[warm_up:])

    def step_time(self, warm_up=0):
        """Mean interval between publications."""
        return (self.published_at[-1] - self.published_at[warm_up]) / (
            len(self.published_at) - 1 - warm_up
        )

    def phase(self, group):
        """Alpha of one group; only where a publication follows its admission."""
        start, end = self.published_at[group.admitted_after : group.admitted_after + 2]
        return (group.admitted_at - start) / (end - start)

    def admission_phase(self, warm_up=0):
        last = len(self.published_at) - 1
        return mean(
            self.phase(one) for one in self.admitted if warm_up <= one.admitted_after < last
        )

    def completion_phase(self, warm_up=1):
        """Beta: mean offset from the start of the step before, over the mean interval."""
        offsets = [
            one.finished_at - self.started_at[one.consumed_in - 1] for one in self.after(warm_up)
        ]
        starts = self.started_at[warm_up:]
        return mean(offsets) / mean(b - a for a, b in pairwise(starts))


def oldest_first(ready, count, rng):
    return sorted(ready, key=lambda one: (one.version, one.number))[:count]


def youngest_first(ready, count, rng):
    return sorted(ready, key=lambda one: (-one.version, -one.number))[:count]


def at_random(ready, count, rng):
    return [ready[at] for at in rng.permutation(len(ready))[:count]]


@dataclass(kw_only=True)
class World:
    """Fixed pools: groups start when admitted, bursts reserve theirs, training has one speed."""

    batch: int
    depth: int
    draw: object
    """Duration of a group, of (rng, number of unfinished groups)."""
    training_rate: float
    steps: int = 1
    is_continuous: bool = False
    choose: object = oldest_first
    drop_older_than: float = math.inf
    """Ready groups of higher staleness are thrown away and replaced: the accounting is broken."""

    def run(self, bursts, *, seed):
        self.rng = np.random.default_rng(seed)
        self.seen = Seen()
        self.now, self.version, self.running, self.ready = 0.0, 0, [], []
        self.admit(self.depth)
        for burst in range(1, bursts + 1):
            self.burst(burst)
        return self.seen

    def admit(self, count):
        for _ in range(count):
            duration = self.draw(self.rng, len(self.running))
            group = Group(
                len(self.seen.admitted),
                self.version,
                len(self.seen.published_at) - 1,
                self.now,
                duration,
            )
            self.seen.admitted.append(group)
            heappush(self.running, (self.now + duration, group.number, group))

    def finish_next(self):
        self.now, _, group = heappop(self.running)
        group.finished_at = self.now
        self.ready.append(group)
        if self.is_continuous:
            self.admit(1)

    def burst(self, burst):
        wanted = self.batch * self.steps
        self.drop()
        while len(self.ready) < wanted:
            self.finish_next()
            self.drop()
        chosen = self.choose(self.ready, wanted, self.rng)
        taken = {one.number for one in chosen}
        self.ready = [one for one in self.ready if one.number not in taken]
        self.seen.started_at.append(self.now)
        end = self.now + wanted / self.training_rate
        while self.running and self.running[0][0] <= end:
            self.finish_next()
        self.now = end
        for place, group in enumerate(chosen):
            group.consumed_in = burst
            group.staleness = self.version + place // self.batch - group.version
            self.seen.consumed.append(group)
        self.version += self.steps
        self.seen.published_at.append(end)
        self.seen.ready.append(len(self.ready))
        outstanding = [*self.ready, *(one for _, _, one in self.running)]
        self.seen.ages.append(sum(self.version - one.version for one in outstanding))
        if not self.is_continuous:
            self.admit(wanted)

    def drop(self):
        kept = [one for one in self.ready if self.version - one.version <= self.drop_older_than]
        dropped = len(self.ready) - len(kept)
        self.ready = kept
        self.admit(dropped)


def exponential(latency):
    return lambda rng, unfinished: rng.exponential(latency)


def log_normal(latency, sigma=0.6):
    return lambda rng, unfinished: latency * rng.lognormal(-(sigma**2) / 2, sigma)


def timed_out(latency):
    """Half of them end early, the other half at a common deadline."""
    return lambda rng, unfinished: latency * (rng.random() if rng.random() < 0.5 else 1.5)


@dataclass
class Estimate:
    """The mean of independent runs, with its standard error."""

    mean: float
    error: float

    def agrees(self, expected, *, errors=4.0, slack=0.0):
        """Within so many standard errors; `slack` is what a finite run leaves out."""
        return abs(self.mean - expected) <= errors * self.error + slack

    def differs(self, expected, *, errors=10.0):
        return abs(self.mean - expected) > errors * self.error


def repeated(world, measure, *, runs=12, bursts=300):
    values = [measure(world.run(bursts, seed=seed)) for seed in range(runs)]
    return Estimate(mean(values), stdev(values) / math.sqrt(runs))
