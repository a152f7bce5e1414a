"""What has happened to a scheduler's world, told from events and commands alone."""

from math import ceil, floor

from gyre.scheduler.policies import Async, Boundary
from gyre.types.outcomes import Outcome

SERVING, ENTERING, TRAINING, LEAVING, WAITING, FENCED, DEAD = (
    "serving", "entering", "training", "leaving", "waiting", "fenced", "dead",
)  # fmt: skip
AWAY = {ENTERING, TRAINING, LEAVING, WAITING}
COUNTED = {Outcome.VALID, Outcome.PLACEHOLDER}


class Books:
    """What has happened, told from outside the scheduler."""

    def __init__(self, shape):
        self.shape = shape
        self.serves = not isinstance(shape.placement, Async)
        self.cells = [SERVING if self.serves else TRAINING] * shape.num_cells
        self.strikes = [0] * shape.num_cells
        self.serves_only = set()
        self.returned_this_burst = set()
        self.capacities = [shape.cell_capacity] * shape.num_cells + list(
            shape.standalone_capacities
        )
        self.fenced = set()
        self.d = self.p = self.f = 0
        self.groups = {}
        self.consumed = set()
        self.seats = {}
        self.held = set()
        self.stranded = set()
        self.evaluations = set()
        self.short_of_room = False
        self.covered = False
        self.version = self.published = 0
        self.open_step = None
        self.assigned = []
        self.burst_over = False
        self.supply_since = None
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.staleness = []
        self.survivors = self.lag = 0

    def ready_engines(self):
        num_cells = self.shape.num_cells
        return [
            engine
            for engine in range(len(self.capacities))
            if (
                self.serves and self.cells[engine] == SERVING
                if engine < num_cells
                else engine not in self.fenced
            )
        ]

    def capacity(self):
        return sum(self.capacities[engine] for engine in self.ready_engines())

    def all_home(self):
        return not self.serves or not any(state in AWAY for state in self.cells)

    def most(self, engine):
        factor = self.shape.overcommit if self.all_home() else 1
        return floor(self.capacities[engine] * factor + 1e-9)

    def load(self, engine):
        return sum(1 for at in self.seats.values() if at == engine)

    def waterlevel(self):
        own = self.d - self.f + len(self.held)
        if not isinstance(self.shape.dispatch, Boundary) and self.more_groups(1):
            own = max(own, self.shape.dispatch.depth * self.shape.group_size)
        return own + len(self.evaluations)

    def outstanding(self):
        return len(self.groups) - len(self.consumed)

    def more_groups(self, wanted):
        if self.shape.steps is None or self.shape.endless_dispatch:
            return wanted
        left = (self.shape.steps - self.version) * self.shape.groups_per_batch
        return max(0, min(wanted, left - self.outstanding()))

    def ready(self):
        return [
            number
            for number, group in self.groups.items()
            if group["offered"] and not group["assigned"]
        ]

    def needed(self):
        return self.shape.groups_per_batch - len(self.assigned)

    def supply_needed(self):
        return ceil(self.shape.supply_fraction * self.shape.groups_per_batch - 1e-9)
