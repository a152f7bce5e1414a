"""Events as the world enters them in its books, and what must hold after each."""

from tests.scheduler.support.books import (
    COUNTED,
    DEAD,
    ENTERING,
    FENCED,
    LEAVING,
    SERVING,
    TRAINING,
    WAITING,
)

from gyre.scheduler.messages import (
    CellDied,
    CellRecovered,
    CellServing,
    CellTraining,
    EngineLost,
    EngineReturned,
    EvaluationEnded,
    ExecutionClosed,
    ExecutionTerminated,
    GroupAssigned,
    Published,
    StepTaken,
    TransitionFailed,
)
from gyre.scheduler.policies import Boundary, Elastic
from gyre.types.outcomes import Outcome


class Noting:
    """Keeps `books` by what happens."""

    def _note_event(self, event):
        """Enters the event; returns what stood there before."""
        books = self.books
        over = False
        self.just_published = False
        match event:
            case ExecutionTerminated(group=group, member=member, ending=ending):
                self._terminated(group, member, ending)
            case ExecutionClosed(group=group, member=member, outcome=outcome):
                self._closed(group, member, outcome)
            case GroupAssigned(group=group) if not books.groups[group]["assigned"]:
                books.groups[group]["assigned"] = True
                books.assigned.append(group)
            case StepTaken(step=step) if step == books.open_step:
                self._stepped(step)
                over = books.burst_over
            case CellTraining(cell=cell, transition=number):
                if self.transitions.get(cell) == (ENTERING, number):
                    self._ended(cell, TRAINING)
            case CellServing(cell=cell, transition=number):
                if self.transitions.get(cell) == (LEAVING, number):
                    self._ended(cell, WAITING if books.burst_over else SERVING)
            case TransitionFailed(cell=cell, transition=number):
                self._failed(cell, number)
            case Published(version=version, silent=silent) if version > books.published:
                self._published(version, silent)
            case CellDied(cell=cell) if books.cells[cell] != DEAD:
                self._lost(cell)
                books.covered = False
                if books.cells[cell] in (ENTERING, LEAVING):
                    books.supply_since = None
                books.cells[cell] = DEAD
                books.strikes[cell] = 0
            case CellRecovered(cell=cell, version=version) if books.cells[cell] == DEAD:
                current = version == books.published or not books.serves
                books.cells[cell] = SERVING if current else FENCED
                books.returned_this_burst.add(cell)
            case EngineLost(engine=engine):
                self._engine_lost(engine)
            case EngineReturned(engine=engine, version=version):
                self._engine_returned(engine, version)
            case EvaluationEnded(evaluation=evaluation):
                books.evaluations.discard(evaluation)
                books.seats.pop(("evaluation", evaluation), None)
                books.stranded.discard(("evaluation", evaluation))
            case _:
                pass
        self._watch_supply()
        return over

    def _terminated(self, number, member, ending):
        books = self.books
        group = books.groups[number]
        if number in books.consumed or group["stage"][member] not in ("queued", "running"):
            return
        if group["stage"][member] == "queued":
            books.p += 1
        elif self.shape.evaluation_holds_slot:
            books.held.add((number, member))
        else:
            books.seats.pop((number, member), None)
            books.stranded.discard((number, member))
        books.f += 1
        group["stage"][member] = "terminated"

    def _closed(self, number, member, outcome):
        books = self.books
        group = books.groups[number]
        if number in books.consumed or group["stage"][member] != "terminated":
            return
        if (number, member) in books.held:
            books.held.remove((number, member))
            books.seats.pop((number, member), None)
            books.stranded.discard((number, member))
        full = len(group["counted"]) >= self.shape.executions_per_group
        outcome = Outcome.SURPLUS if full else outcome
        group["stage"][member] = "closed"
        books.outcomes[outcome] += 1
        if outcome in COUNTED:
            group["counted"].append(member)
        if len(group["counted"]) == self.shape.executions_per_group:
            for other, stage in enumerate(group["stage"]):
                if stage == "queued":
                    books.p += 1
                    books.f += 1
                    group["stage"][other] = "closed"
                    books.outcomes[Outcome.SURPLUS] += 1
        if all(stage == "closed" for stage in group["stage"]):
            group["offered"] = True
            if not isinstance(self.shape.dispatch, Boundary):
                self.expected_admissions += books.more_groups(1)

    def _stepped(self, step):
        books = self.books
        assert len(books.assigned) == self.shape.groups_per_batch
        books.staleness += [step - books.groups[one]["version"] for one in books.assigned]
        books.consumed.update(books.assigned)
        books.assigned = []
        books.open_step = None
        books.version += 1
        books.survivors += books.outstanding()
        books.burst_over = books.version % self.shape.steps_per_burst == 0
        books.supply_since = None

    def _ended(self, cell, state):
        del self.transitions[cell]
        self.books.cells[cell] = state
        self.books.strikes[cell] = 0
        self.books.supply_since = None

    def _failed(self, cell, number):
        if self.transitions.get(cell, (None, None))[1] != number:
            return
        books = self.books
        kind, _ = self.transitions.pop(cell)
        if kind == LEAVING or books.cells[0] in (ENTERING, TRAINING):
            books.strikes[cell] += 1
        if kind == ENTERING:
            books.cells[cell] = SERVING
            books.supply_since = None
            if books.strikes[cell] == 3:
                books.serves_only.add(cell)
        elif books.strikes[cell] == 3:
            books.cells[cell] = DEAD
            books.strikes[cell] = 0
            books.supply_since = None

    def _published(self, version, silent):
        books = self.books
        books.published = version
        self.just_published = True
        books.covered = False
        books.burst_over = False
        books.returned_this_burst = set()
        if isinstance(self.shape.dispatch, Boundary):
            wanted = self.shape.steps_per_burst * self.shape.groups_per_batch
            if version != self.shape.steps:
                self.expected_admissions += books.more_groups(wanted)
        for engine in range(len(books.capacities)):
            is_cell = engine < self.shape.num_cells
            has_it = engine in self.asked and engine not in silent
            if is_cell and books.serves and books.cells[engine] in (SERVING, WAITING):
                if not has_it:
                    self._lost(engine)
                books.cells[engine] = SERVING if has_it else FENCED
            elif not is_cell and engine not in books.fenced and not has_it:
                self._lost(engine)
                books.fenced.add(engine)

    def _lost(self, engine):
        books = self.books
        if engine in books.ready_engines():
            books.short_of_room = True
            books.covered = False
            for seat, at in list(books.seats.items()):
                if at == engine:
                    del books.seats[seat]
                    books.stranded.add(seat)
        self.asked.discard(engine)

    def _engine_lost(self, engine):
        books = self.books
        if engine >= self.shape.num_cells:
            if engine not in books.fenced:
                self._lost(engine)
                books.fenced.add(engine)
        elif books.serves and books.cells[engine] in (SERVING, WAITING):
            self._lost(engine)
            books.cells[engine] = FENCED

    def _engine_returned(self, engine, version):
        books = self.books
        if version != books.published:
            return
        if engine >= self.shape.num_cells:
            books.fenced.discard(engine)
        elif books.cells[engine] == FENCED:
            books.cells[engine] = SERVING
            books.returned_this_burst.add(engine)

    def _watch_supply(self):
        books = self.books
        if min(len(books.ready()), books.needed()) < books.supply_needed():
            books.supply_since = None
        elif books.supply_since is None:
            books.supply_since = self.now

    def _check(self):
        books = self.books
        scheduler = self.scheduler
        counters = scheduler.counters
        assert 0 <= counters.terminated <= counters.launched <= counters.dispatched
        assert (books.d, books.p, books.f) == (
            counters.dispatched,
            counters.launched,
            counters.terminated,
        )
        assert books.cells == [scheduler.cells.state(cell).value for cell in scheduler.cells]
        assert books.capacity() == scheduler.engines.capacity
        assert books.waterlevel() == scheduler.waterlevel
        self._check_room()
        self._check_prefix()
        self._check_ledgers()

    def _check_room(self):
        books = self.books
        occupied = len(books.seats) + len(books.stranded)
        assert occupied == self.scheduler.engines.occupied
        assert occupied == books.p - books.f + len(books.held) + len(books.evaluations)
        limit = sum(books.most(one) for one in books.ready_engines())
        if occupied <= limit and not books.stranded:
            books.short_of_room = False
        if not self.pauses:
            assert books.short_of_room or occupied <= limit
            if books.serves and not books.all_home() and not books.short_of_room:
                assert occupied <= books.capacity()
        if books.covered:
            assert books.waterlevel() <= books.capacity(), "a cell was given away and is missed"
        waiting = any(
            "queued" in group["stage"]
            for number, group in books.groups.items()
            if number not in self.admissions
        )
        waits = self.shape.launch_order.waits_for_estimates and self.admissions
        if waiting and not waits:
            assert occupied >= limit, "a slot is free and an execution queues"
        if books.stranded and not self.pauses:
            assert len(books.seats) >= limit, "a slot is free and an execution has none"

    def _check_prefix(self):
        """Cells in training come before all others that could be (SPEC 2.1)."""
        books = self.books
        if not isinstance(self.shape.placement, Elastic):
            return
        joined = [cell for cell, state in enumerate(books.cells) if state in (TRAINING, ENTERING)]
        for cell in range(max(joined, default=0)):
            could = books.cells[cell] == SERVING and cell not in books.serves_only
            assert not could or cell in books.returned_this_burst, f"cell {cell} was passed over"

    def _check_ledgers(self):
        books = self.books
        ledger = self.scheduler.ledger
        assert ledger.admitted == ledger.trained + ledger.void + ledger.outstanding
        assert (len(books.groups), len(books.consumed)) == (
            ledger.admitted,
            ledger.trained + ledger.void,
        )
        assert sum(books.groups[one]["void"] for one in books.consumed) == ledger.void
        open_ones = sum(
            stage != "closed" for group in books.groups.values() for stage in group["stage"]
        )
        assert books.outcomes == ledger.outcomes
        assert books.d == ledger.closed + open_ones
        age = sum(
            books.version - group["version"]
            for number, group in books.groups.items()
            if number not in books.consumed
        )
        staleness = self.scheduler.staleness
        assert sum(books.staleness) + age == books.survivors + books.lag
        assert sum(books.staleness) == staleness.consumed
        assert age == staleness.outstanding_age(books.version)
        assert books.survivors == staleness.survivors
        assert books.lag == staleness.lag_at_admission
