"""Commands as the world obeys them, each checked against the books at that moment."""

from tests.scheduler.support.books import DEAD, ENTERING, LEAVING, SERVING, TRAINING, WAITING
from tests.scheduler.support.recorder import Noting

from gyre.scheduler.messages import (
    AdmitGroup,
    CancelExecution,
    CellTraining,
    EnterTraining,
    LaunchEvaluation,
    LaunchExecution,
    LeaveReason,
    LeaveTraining,
    LoadWeights,
    MoveExecutions,
    OfferGroup,
    OpenBatch,
    Publish,
    RestartCell,
    RunStarted,
    StopRun,
)
from gyre.scheduler.policies import Async, Boundary, Colocate, Elastic, OldestFirst, Resumable


class Obeying(Noting):
    """Owes an answer to every command, and asks whether it was right to give it."""

    def _obey(self, commands, burst_just_ended):
        leaving = {one.cell for one in commands if isinstance(one, LeaveTraining)}
        if burst_just_ended and self.books.serves:
            for cell in range(1, self.shape.num_cells):
                if self.books.cells[cell] in (TRAINING, ENTERING):
                    assert cell in leaving, f"cell {cell} was forgotten at the end of the burst"
        if self.just_published and self.books.serves and self.books.cells[0] == TRAINING:
            is_over = self.books.published == self.shape.steps
            assert is_over or (0 in leaving) != self._core_should_stay(), "retention"
        entering = [one for one in commands if isinstance(one, EnterTraining)]
        for command in commands:
            if entering and command == entering[0]:
                self._check_entering(entering)
            self._obey_one(command)
        self._resit_held()
        assert self.expected_admissions == 0 or self.stopped is not None

    def _obey_one(self, command):
        books = self.books
        assert self.stopped is None
        if isinstance(command, LaunchExecution | LaunchEvaluation):
            self._resit_held()
        match command:
            case AdmitGroup(group=group, version=version, size=size):
                self._admitted(group, version, size)
            case LaunchExecution(group=group, member=member, engine=engine):
                self._launched(group, member, engine)
            case CancelExecution(group=group, member=member):
                assert books.groups[group]["stage"][member] in ("running", "terminated")
                assert (group, member) not in self.cancelled
                self.cancelled.add((group, member))
            case LaunchEvaluation(evaluation=evaluation, engine=engine):
                if books.serves and not books.all_home():
                    assert books.waterlevel() < books.capacity()
                books.evaluations.add(evaluation)
                assert len(books.evaluations) <= self.shape.evaluation_slots
                self._sit(("evaluation", evaluation), engine)
            case MoveExecutions() | EnterTraining():
                if isinstance(command, EnterTraining):
                    self._entering(command)
                for move in command.moves:
                    assert (move.group, move.member) not in books.held
                    self._resit((move.group, move.member), move.engine)
                for move in command.evaluations:
                    self._resit(("evaluation", move.evaluation), move.engine)
                self._resit_held()
                if isinstance(command, EnterTraining) and not self.pauses:
                    assert not books.stranded or books.short_of_room
            case OfferGroup(group=group, version=version, members=members, is_void=is_void):
                assert books.groups[group]["offered"]
                assert version == books.groups[group]["version"]
                assert tuple(sorted(books.groups[group]["counted"])) == members
                assert is_void == (len(members) < self.shape.min_valid)
                books.groups[group]["void"] = is_void
                self.offered.append(group)
            case LeaveTraining():
                self._leaving(command)
            case OpenBatch(step=step):
                assert books.open_step is None
                assert not books.burst_over
                assert books.cells[0] == TRAINING
                assert step == books.version
                books.open_step = step
                books.supply_since = None
                self._watch_supply()
            case Publish(version=version, engines=engines):
                self._publishing(version, engines)
            case LoadWeights(engine=engine, version=version):
                assert version == books.published
                self.loads[engine] = version
            case RestartCell(cell=cell):
                assert books.cells[cell] == DEAD
                self.transitions.pop(cell, None)
                self.restarts.add(cell)
            case StopRun(reason=reason):
                self.stopped = reason

    @property
    def pauses(self):
        return isinstance(self.shape.placement, Resumable)

    def _admitted(self, number, version, size):
        books = self.books
        assert number == len(books.groups)
        assert version == books.published
        assert size == self.shape.group_size
        if self.log[-1][0] == RunStarted():
            self.expected_admissions = self.expected_admissions or self._expected_at_start()
        self.expected_admissions -= 1
        assert self.expected_admissions >= 0, "more groups are admitted than were consumed"
        books.groups[number] = {
            "version": version,
            "stage": ["queued"] * size,
            "counted": [],
            "offered": False,
            "assigned": False,
            "void": False,
        }
        books.d += size
        books.lag += books.version - version
        self.admissions.append(number)

    def _expected_at_start(self):
        dispatch = self.shape.dispatch
        batch = self.shape.groups_per_batch
        if not isinstance(dispatch, Boundary):
            return self.books.more_groups(dispatch.depth)
        depth = round((dispatch.extra_dispatch + self.shape.steps_per_burst) * batch)
        return self.books.more_groups(depth)

    def _launched(self, number, member, engine):
        books = self.books
        group = books.groups[number]
        assert number not in self.admissions
        assert group["stage"][member] == "queued"
        if isinstance(self.shape.launch_order, OldestFirst):
            for other, one in books.groups.items():
                if other < number and other not in self.admissions:
                    assert "queued" not in one["stage"], f"group {other} was overtaken by {number}"
        room = books.most(engine) - books.load(engine)
        for other in books.ready_engines():
            assert (books.most(other) - books.load(other), other) <= (room, engine)
        group["stage"][member] = "running"
        books.p += 1
        self.running.append((number, member))
        self._sit((number, member), engine)

    def _sit(self, seat, engine):
        books = self.books
        assert engine in books.ready_engines(), f"engine {engine} does not serve"
        assert books.load(engine) < books.most(engine), f"engine {engine} has no room"
        books.seats[seat] = engine
        limit = sum(books.most(one) for one in books.ready_engines())
        assert len(books.seats) + len(books.stranded) <= limit or books.short_of_room

    def _resit(self, seat, engine):
        books = self.books
        assert seat in books.stranded
        books.stranded.remove(seat)
        assert engine in books.ready_engines()
        assert books.load(engine) < books.most(engine)
        books.seats[seat] = engine

    def _resit_held(self):
        """Ended executions that hold a slot move without an order; the scheduler is asked where."""
        books = self.books
        for seat in [one for one in books.stranded if one in books.held]:
            engine = self.scheduler.engines.engine_of(seat)
            if engine is not None:
                self._resit(seat, engine)

    def _check_entering(self, entering):
        """All that must hold when cells set out for training (eq:cell-admission)."""
        books = self.books
        placement = self.shape.placement
        assert not any(state in (ENTERING, LEAVING) for state in books.cells), "not serial"
        assert not books.burst_over, "a cell enters after the last update of a burst"
        cells = [one.cell for one in entering]
        for cell in cells:
            assert books.cells[cell] == SERVING
            assert cell not in books.serves_only
        if isinstance(placement, Async):
            return
        if isinstance(placement, Colocate):
            home = [
                cell
                for cell, state in enumerate(books.cells)
                if state == SERVING and cell not in books.serves_only
            ]
            assert home == cells, "the pool does not enter together"
        else:
            assert len(cells) == 1, "not serial"
        if not self.pauses:
            left = books.capacity() - len(cells) * self.shape.cell_capacity
            assert books.waterlevel() <= left, "admission"
        if books.cells[0] != TRAINING and cells[0] == 0:
            if books.open_step is not None:
                return
            if not placement.streaming:
                steps = self.shape.steps_per_burst
                left = steps - books.version % steps
                assert len(books.ready()) >= left * self.shape.groups_per_batch
                return
        assert books.cells[0] == TRAINING or cells[0] == 0, "a satellite enters without the core"
        assert books.supply_since is not None, "no supply"
        assert self.now >= books.supply_since + self.shape.supply_dwell_s, "dwell"

    def _entering(self, command):
        books = self.books
        books.cells[command.cell] = ENTERING
        books.covered = books.serves and not self.pauses
        self.transitions[command.cell] = (ENTERING, command.transition)
        for seat, at in list(books.seats.items()):
            if at == command.cell:
                del books.seats[seat]
                books.stranded.add(seat)

    def _leaving(self, command):
        books = self.books
        cell = command.cell
        assert books.cells[cell] in (TRAINING, ENTERING, LEAVING)
        if cell in self.transitions:
            _, number = self.transitions[cell]
            self.outdated.append(CellTraining(cell=cell, transition=number))
        match command.reason:
            case LeaveReason.AFTER_BURST:
                assert books.burst_over
                assert cell != 0
            case LeaveReason.AFTER_PUBLICATION:
                assert cell == 0
                if books.cells[cell] != LEAVING:
                    assert not books.burst_over
                    assert not self._core_should_stay()
            case LeaveReason.RESCUE:
                waiting = books.d - books.f + len(books.evaluations)
                assert books.cells[cell] == LEAVING or (waiting and not books.ready_engines())
        books.cells[cell] = LEAVING
        self.transitions[cell] = (LEAVING, command.transition)

    def _core_should_stay(self):
        """eq:core-retention, with w as it was before the dispatch."""
        books = self.books
        shape = self.shape
        if not isinstance(shape.placement, Elastic):
            return False
        ready = len(books.ready())
        if shape.placement.streaming:
            enough = ready >= shape.supply_fraction * shape.groups_per_batch - 1e-9
        else:
            enough = ready >= shape.steps_per_burst * shape.groups_per_batch
        pending = self.expected_admissions * shape.group_size
        return enough and books.waterlevel() + pending <= books.capacity()

    def _publishing(self, version, engines):
        books = self.books
        assert books.burst_over, "published before the burst is over"
        assert version == books.version
        assert version % self.shape.steps_per_burst == 0
        assert books.cells[0] not in (DEAD, ENTERING, LEAVING)
        if books.serves:
            assert not any(state in (TRAINING, ENTERING, LEAVING) for state in books.cells[1:])
        num_cells = self.shape.num_cells
        at_home = [
            cell
            for cell in range(num_cells)
            if books.serves and books.cells[cell] in (SERVING, WAITING)
        ]
        standalone = [
            engine
            for engine in range(num_cells, len(books.capacities))
            if engine not in books.fenced
        ]
        assert (*at_home, *standalone) == engines
        self.asked = set(engines)
        self.publish = (version, engines)
