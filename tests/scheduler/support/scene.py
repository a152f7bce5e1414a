"""Short ways to say what happens to a scheduler in an example."""

from gyre.scheduler.config import SchedulerConfig
from gyre.scheduler.messages import (
    AdmitGroup,
    CellServing,
    CellTraining,
    EnterTraining,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    LeaveTraining,
    RunStarted,
    StepTaken,
)
from gyre.scheduler.policies import Boundary
from gyre.scheduler.scheduler import Scheduler
from gyre.types.outcomes import Ending, Outcome

DEFAULTS = {
    "groups_per_batch": 2,
    "executions_per_group": 2,
    "num_cells": 3,
    "cell_capacity": 4,
    "dispatch": Boundary(extra_dispatch=0),
    "supply_dwell_s": 5.0,
    "max_void": 1.0,
}


def shape(**changes):
    return SchedulerConfig(**{**DEFAULTS, **changes})


class Scene:
    """A scheduler, the time, and verbs; every verb returns the commands it led to."""

    def __init__(self, **changes):
        self.scheduler = Scheduler(shape(**changes))
        self.now = 0.0
        self.opening = self.tell(RunStarted())

    def tell(self, event, at=None):
        self.now = self.now if at is None else at
        return self.scheduler.handle(event, self.now)

    def admit(self, commands=None, estimates=()):
        """Answers every AdmitGroup among the commands."""
        commands = self.opening if commands is None else commands
        groups = [one.group for one in commands if isinstance(one, AdmitGroup)]
        estimates = dict(zip(groups, estimates, strict=False))
        followed = []
        for group in groups:
            followed += self.tell(GroupAdmitted(group=group, estimate_s=estimates.get(group)))
        return followed

    def terminate(self, group, member, ending=Ending.COMPLETED):
        return self.tell(ExecutionTerminated(group=group, member=member, ending=ending))

    def close(self, group, member, outcome=Outcome.VALID):
        return self.tell(ExecutionClosed(group=group, member=member, outcome=outcome))

    def ready(self, *groups, outcome=Outcome.VALID):
        followed = []
        for group in groups:
            for member in range(self.scheduler.shape.group_size):
                followed += self.terminate(group, member)
                followed += self.close(group, member, outcome)
        return followed

    def switch(self, commands):
        """Answers every transition among the commands, and those that follow from it."""
        followed = []
        for one in commands:
            if isinstance(one, EnterTraining):
                answer = self.tell(CellTraining(cell=one.cell, transition=one.transition))
            elif isinstance(one, LeaveTraining):
                answer = self.tell(CellServing(cell=one.cell, transition=one.transition))
            else:
                continue
            followed += answer + self.switch(answer)
        return followed

    def take_step(self, step, *groups):
        for group in groups:
            self.tell(GroupAssigned(group=group, step=step))
        return self.tell(StepTaken(step=step))

    def states(self):
        cells = self.scheduler.cells
        return [cells.state(cell).value for cell in cells]

    def current(self, cell):
        return self.scheduler.cells.transition(cell)


def of(kind, commands):
    return [one for one in commands if isinstance(one, kind)]


def core_in_training(**changes):
    """A scene in which groups 0 and 1 are ready and the core has entered for them."""
    scene = Scene(**{"supply_dwell_s": 0.0, **changes})
    scene.admit()
    commands = scene.ready(0, 1)
    scene.switch(of(EnterTraining, commands))
    return scene
