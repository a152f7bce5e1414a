"""A world for the scheduler to live in: it owes answers to commands, and watches every promise.

The watching is done with books of its own, kept from commands and events alone, so that a rule
that is wrong in the scheduler is not wrong here in the same way.
"""

from tests.scheduler.support.books import ENTERING, TRAINING, Books
from tests.scheduler.support.executor import Obeying

from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineLost,
    EngineReturned,
    EvaluationEnded,
    EvaluationRequested,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAdmitted,
    GroupAssigned,
    Published,
    RunStarted,
    StepTaken,
    TimerFired,
    TransitionFailed,
)
from gyre.scheduler.scheduler import Scheduler
from gyre.types.outcomes import Ending, Outcome


class World(Obeying):
    """Obligations to answer, in any order the caller likes, and checks at every turn."""

    def __init__(self, shape, scheduler=None, *, now=0.0):
        self.shape = shape
        self.scheduler = Scheduler(shape) if scheduler is None else scheduler
        self.books = Books(shape)
        self.now = now
        self.log = []
        self.admissions = []
        self.running = []
        self.closing = []
        self.cancelled = set()
        self.offered = []
        self.transitions = {}
        self.publish = None
        self.loads = {}
        self.restarts = set()
        self.stopped = None
        self.num_evaluations = 0
        self.expected_admissions = 0
        self.outdated = []
        self.asked = set()
        self.tell(RunStarted())

    # What the world may do

    def tell(self, event):
        if self.stopped is not None:
            assert [] == self.scheduler.handle(event, self.now)
            return []
        before = self._note_event(event)
        commands = self.scheduler.handle(event, self.now)
        self.log.append((event, self.now, commands))
        self._obey(commands, before)
        if self.stopped is None:
            self._check()
        return commands

    def admit(self, at=0, estimate_s=None):
        group = self.admissions.pop(at % len(self.admissions))
        self.tell(GroupAdmitted(group=group, estimate_s=estimate_s))

    def terminate(self, at=0, ending=Ending.COMPLETED):
        group, member = self.running.pop(at % len(self.running))
        self.closing.append((group, member))
        self.tell(ExecutionTerminated(group=group, member=member, ending=ending))

    def close(self, at=0, outcome=Outcome.VALID):
        group, member = self.closing.pop(at % len(self.closing))
        if (group, member) in self.cancelled:
            outcome = Outcome.SURPLUS
        self.tell(ExecutionClosed(group=group, member=member, outcome=outcome))

    @property
    def may_assign(self):
        books = self.books
        is_open = books.open_step is not None and books.cells[0] == TRAINING
        return is_open and bool(self.offered) and books.needed() > 0

    def assign(self):
        group = min(self.offered, key=lambda one: (self.books.groups[one]["version"], one))
        self.offered.remove(group)
        self.tell(GroupAssigned(group=group, step=self.books.open_step))

    @property
    def may_step(self):
        books = self.books
        return books.open_step is not None and books.needed() == 0 and books.cells[0] == TRAINING

    def step(self):
        self.tell(StepTaken(step=self.books.open_step))

    def finish_transition(self, at=0, works=True):
        cells = sorted(self.transitions)
        cell = cells[at % len(cells)]
        kind, number = self.transitions[cell]
        arrived = CellTraining if kind == ENTERING else CellServing
        event = arrived if works else TransitionFailed
        self.outdated.append(event(cell=cell, transition=number))
        self.tell(event(cell=cell, transition=number))

    def finish_publication(self, silent=()):
        version, engines = self.publish
        self.publish = None
        silent = tuple(engine for engine in engines if engine in silent)
        self.tell(Published(version=version, silent=silent))

    def finish_load(self, at=0):
        engines = sorted(self.loads)
        engine = engines[at % len(engines)]
        self.tell(EngineReturned(engine=engine, version=self.loads.pop(engine)))

    def finish_restart(self, at=0, is_late=False):
        cells = sorted(self.restarts)
        cell = cells[at % len(cells)]
        self.restarts.remove(cell)
        version = max(0, self.books.published - is_late)
        self.tell(CellRecovered(cell=cell, version=version))

    def cancel(self, at=0):
        """Somebody ends an execution that has not launched."""
        queued = self.queued()
        group, member = queued[at % len(queued)]
        self.closing.append((group, member))
        self.tell(ExecutionTerminated(group=group, member=member, ending=Ending.CANCELLED))

    def queued(self):
        return [
            (number, member)
            for number, group in self.books.groups.items()
            if number not in self.admissions
            for member, stage in enumerate(group["stage"])
            if stage == "queued"
        ]

    def kill(self, cell, publication_survives=False):
        self.transitions.pop(cell, None)
        self.loads.pop(cell, None)
        if cell == 0 and not publication_survives:
            self.publish = None
        self.tell(CellDied(cell=cell))

    def lose(self, engine):
        self.tell(EngineLost(engine=engine))

    def request_evaluation(self):
        self.num_evaluations += 1
        self.tell(EvaluationRequested(evaluation=self.num_evaluations))

    def end_evaluation(self, at=0):
        running = sorted(self.books.evaluations)
        self.tell(EvaluationEnded(evaluation=running[at % len(running)]))

    def wait(self, seconds):
        self.now += seconds
        self.tell(TimerFired())

    def wake(self):
        self.now = self.scheduler.wake_at(self.now)
        self.tell(TimerFired())

    def possible(self):
        """Names of the benign things that could happen next."""
        owed = {
            "admit": self.admissions,
            "terminate": self.running,
            "close": self.closing,
            "assign": self.may_assign,
            "step": self.may_step,
            "finish_transition": self.transitions,
            "finish_publication": self.publish is not None,
            "finish_load": self.loads,
            "finish_restart": self.restarts,
            "end_evaluation": self.books.evaluations,
        }
        found = [name for name, is_owed in owed.items() if is_owed]
        if self.scheduler.wake_at(self.now) is not None:
            found.append("wake")
        return found

    def go_on(self, choose, turns=1):
        """Lets benign things happen; `choose` picks one of a list."""
        for _ in range(turns):
            if self.stopped is not None or not (possible := self.possible()):
                return
            getattr(self, choose(possible))()

    def finish(self, turns=3_000):
        """From wherever it is, a world that does nothing bad brings the run to its end."""
        count = 0
        while self.stopped is None:
            possible = self.possible()
            assert possible, "nothing is owed, no timer is set, and the run is not over"
            getattr(self, possible[count % len(possible)])()
            count += 1
            assert count < turns, "the run does not end"
