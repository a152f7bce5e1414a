"""Cells in memory that do what they are ordered, and hang or die when a test says so."""

import asyncio
from collections import deque

from gyre.cell.protocol import CellHealth, ExposedWeights, SavedCheckpoint
from gyre.types.errors import CellError, CellGone, ExposureGone
from gyre.types.training import ClaimReport, Measures, StepReport, Work

MEASURES = Measures(
    num_targets=0,
    num_capped=0,
    num_raised=0,
    num_raised_clipped=0,
    num_lowered=0,
    num_lowered_clipped=0,
    sum_ratio=0.0,
    max_gap=None,
)
WORK = Work(
    num_packs=1,
    num_skipped=0,
    num_tokens=1,
    num_padding=0,
    num_targets=1,
    model_flops=0.0,
    forward_s=0.0,
    backward_s=0.0,
)


MEET_S = 0.1
"""How long members wait for each other."""


class FakeWorld:
    """Sums that are under way between cells."""

    def __init__(self):
        self.clients = {}
        self.meetings = {}


class FakeCell:
    """Weights are the history of all updates, a sum is what was trained by lease."""

    def __init__(self, world, number, weights=()):
        self.world = world
        self.number = number
        self.weights = weights
        self.sum = {}
        self.orders = []
        self.trained = []
        """Every claim, with the version of the weights it was trained with."""
        self.is_dead = False
        self.faults = deque()
        """(order, what happens): "die", "hang", "die after", "refuse", "outdated" or a function."""
        self.hung = asyncio.Event()
        self.engine_ready = True
        self.noise = 0.0
        """By how much the norms of its gradients are off."""
        world.clients[number] = self

    @property
    def engine(self):
        return f"engine-{self.number}"

    @property
    def version(self):
        return len(self.weights)

    def die(self):
        self.is_dead = True
        self.hung.set()
        for meeting in self.world.meetings.values():
            if self.number in meeting.members and not meeting.done():
                meeting.fail()

    async def _order(self, name):
        """Whether it dies when the order is done."""
        self.orders.append(name)
        await asyncio.sleep(0)
        self._check()
        fault = None
        if self.faults and self.faults[0][0] == name:
            fault = self.faults.popleft()[1]
        if fault == "die":
            self.die()
        if fault == "hang":
            await self.hung.wait()
        if fault == "refuse":
            message = f"cell {self.number}: refused, as was asked for"
            raise CellError(message)
        if fault == "outdated":
            raise ExposureGone(f"cell {self.number}: what was exposed is there no longer")
        if callable(fault):
            await fault()
        self._check()
        return fault == "die after"

    def _check(self):
        if self.is_dead:
            raise CellGone(f"cell {self.number}: gone")

    def _after(self, dies):
        if dies:
            self.die()
            self._check()

    async def claims_at_once(self):
        return 1

    async def health(self):
        await self._order("health")
        return CellHealth(
            engine_ready=self.engine_ready, engine_version=0, trainer_version=self.version
        )

    async def enter(self):
        await self._order("enter")
        return {}

    async def leave(self, *, keep_sum):
        await self._order("leave")
        if not keep_sum:
            self.sum = {}
        return {}

    async def expose(self):
        await self._order("expose")
        return Shown(self.version, self.weights)

    async def pull(self, exposed):
        await self._order("pull")
        self.weights = exposed.weights
        self.sum = {}

    async def score(self, claim):
        await self._order("score")
        return ()

    async def train(self, claim, *, lease, num_executions, scores):
        dies = await self._order("train")
        if lease in self.sum:
            message = f"lease {lease} is in the sum already"
            raise CellError(message, retryable=False)
        self.sum[lease] = claim
        self.trained.append((claim, self.version))
        self._after(dies)
        return ClaimReport(loss=0.0, scores=(), measures=MEASURES, work=WORK)

    async def reduce(self, epoch, members, leases):
        dies = await self._order("reduce")
        if set(leases[self.number]) != set(self.sum):
            message = f"the sum of cell {self.number} is not of its leases"
            raise CellError(message)
        meeting = self._meet("reduce", epoch, members)
        await meeting.come(self.number, dict(self.sum))
        if members[0] == self.number:
            self.sum = {
                lease: one for found in meeting.given.values() for lease, one in found.items()
            }
        self._after(dies)
        return 0 if members[0] == self.number else 1

    async def broadcast_weights(self, epoch, members, version):
        dies = await self._order("spread")
        meeting = self._meet("spread", epoch, members)
        await meeting.come(self.number, self.weights)
        if members[0] != self.number:
            self.weights = meeting.given[members[0]]
            self.sum = {}
        self._after(dies)

    async def step(self, version):
        dies = await self._order("step")
        if version != self.version:
            message = f"a step from version {version}: the trainer has version {self.version}"
            raise CellError(message, retryable=False)
        self.weights = (*self.weights, tuple(sorted(self.sum.values())))
        self.sum = {}
        self._after(dies)
        norm = float(hash(self.weights) % 2**31) + self.noise
        return StepReport(
            version=self.version, gradient_norm=norm, is_clipped=False, lr=1.0, step_s=0.0
        )

    async def save(self, folder, *, version):
        await self._order("save")
        return SavedCheckpoint(digest=f"digest {version}", seconds=0.0, num_bytes=1)

    async def checkpoint(self, folder, *, version):
        await self._order("checkpoint")
        return SavedCheckpoint(
            digest=f"digest {version}", seconds=0.0, num_bytes=1, has_optimizer=True
        )

    async def offer(self, folder, *, version):
        await self._order("offer")
        return Shown(version, self.weights)

    async def load(self, folder, *, version, digest, given=None):
        await self._order("load" if given is None else "load given")

    def _meet(self, what, epoch, members):
        name = what, epoch, tuple(members), self.version if what == "reduce" else 0
        if name not in self.world.meetings:
            self.world.meetings[name] = Meeting(self.world, members)
        return self.world.meetings[name]


class Shown(ExposedWeights):
    """Weights that lie in memory."""

    def __init__(self, version, weights):
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "parts", ())
        object.__setattr__(self, "weights", weights)

    __slots__ = ("weights",)


class Meeting:
    """Who has come to a reduction; it fails as soon as one of them is gone."""

    def __init__(self, world, members):
        self.members = tuple(members)
        self.given = {}
        self._over = asyncio.get_running_loop().create_future()
        if any(world.clients[one].is_dead for one in members):
            self.fail()

    def done(self):
        return self._over.done()

    def fail(self):
        self._over.set_result(False)

    async def come(self, cell, what):
        self.given[cell] = what
        if len(self.given) == len(self.members) and not self.done():
            self._over.set_result(True)
        done, _ = await asyncio.wait((self._over,), timeout=MEET_S)
        if not done or not self._over.result():
            message = "cannot add up: a member is gone, or does not come"
            raise CellError(message)
