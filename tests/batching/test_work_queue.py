"""Claims as leases: whatever cells do, each claim is in the core's sum once when it steps."""

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.batching.test_packing import admitted, chain

from gyre.batching.group_buffer import BatchAssembler, GroupBuffer
from gyre.batching.packing import pack
from gyre.batching.work_queue import CORE, MicroStepQueue, QueuedClaim, ScoreLease, TrainLease
from gyre.types.errors import InternalError
from gyre.types.training import Claim, Score


def queue_of(*works, cells=(0, 1), now=0.0):
    queue = MicroStepQueue(lease_s=10.0)
    queue.offer([QueuedClaim(work=work) for work in works])
    for cell in cells:
        queue.join(cell, now)
    return queue


def take(queue, cell, now=0.0):
    """Claims and does one claim; its lease."""
    lease = queue.claim(cell, now).lease
    assert queue.done(lease)
    return lease


def test_cells_receive_disjoint_claims_in_order():
    queue = queue_of("a", "b", "c")
    granted = [queue.claim(cell, 0.0) for cell in (0, 1, 0, 1)]

    assert ["a", "b", "c"] == [one.work for one in granted[:3]]
    assert granted[3] is None
    assert 0 == queue.num_unclaimed


def test_everything_a_dead_cell_claimed_in_the_batch_returns():
    queue = queue_of("a", "b", "c")
    done = take(queue, 1)
    under_way = queue.claim(1, 0.0)

    assert (0, 1) == queue.leave(1)
    assert ["a", "b", "c"] == [queue.claim(CORE, 0.0).work for _ in range(3)]
    assert not queue.done(done)
    assert not queue.done(under_way.lease)


def test_what_was_reduced_stays_when_the_cell_dies():
    queue = queue_of("a", "b")

    assert queue.reduce(1, [take(queue, 1)])

    lost = take(queue, 1)

    assert (1,) == queue.leave(1)
    assert "b" == queue.claim(CORE, 0.0).work
    assert not queue.reduce(1, [lost])


def test_what_was_reduced_is_lost_with_the_core():
    queue = queue_of("a", "b", "c")
    queue.reduce(1, [take(queue, 1)])
    take(queue, CORE)

    assert (0, 1) == queue.leave(CORE)
    assert 3 == queue.num_unclaimed
    assert not queue.is_reduced


def test_a_gradient_with_more_or_less_than_its_leases_is_not_added():
    queue = queue_of("a", "b", "c")
    first, second = take(queue, 1), take(queue, 1)

    assert not queue.reduce(1, [first])
    assert not queue.reduce(1, [first, second, 99])
    assert {first, second} == queue.holds(1)
    assert queue.reduce(1, [second, first])
    assert {first, second} == queue.holds(CORE)


def test_done_may_be_said_twice_and_counts_once():
    queue = queue_of("a", "b")
    lease = take(queue, 1)

    assert queue.done(lease)
    assert not queue.is_done

    queue.reduce(1, [lease])

    assert queue.done(lease)
    assert {lease} == queue.holds(CORE)


def test_a_lease_is_kept_by_heartbeats_and_not_by_age():
    queue = queue_of("a", cells=(0, 1), now=0.0)
    queue.claim(1, 0.0)
    for now in (9.0, 18.0, 27.0):
        assert queue.beat(1, now)
        assert queue.beat(0, now)
        assert () == queue.fence(now)

    queue.beat(0, 36.0)

    assert () == queue.fence(36.9)
    assert (1,) == queue.fence(37.0)
    assert not queue.beat(1, 37.0)
    assert 1 == queue.num_unclaimed


def test_a_heartbeat_that_arrives_late_does_not_shorten_the_lease():
    queue = queue_of(cells=(0,), now=5.0)
    queue.beat(0, 3.0)

    assert () == queue.fence(14.9)
    assert (0,) == queue.fence(15.0)


def test_a_cell_that_joins_again_has_lost_what_it_held():
    queue = queue_of("a")
    lease = take(queue, 1)

    assert (0,) == queue.join(1, 1.0)
    assert not queue.done(lease)
    assert frozenset() == queue.holds(1)


def test_a_claim_that_a_cell_could_not_do_waits_again():
    queue = queue_of("a", "b")
    first = queue.claim(0, 0.0)

    assert queue.hand_back(first.lease)
    assert not queue.hand_back(first.lease)

    again = queue.claim(1, 0.0)

    assert ("a", 0) == (again.work, again.claim)
    assert first.lease != again.lease


def test_a_parked_core_keeps_its_sum_and_takes_no_claims():
    queue = queue_of("a", "b", cells=(0,))
    held = take(queue, CORE)
    queue.claim(CORE, 0.0)

    assert (1,) == queue.park(CORE)
    assert (0, 1) == (queue.num_cells, queue.num_unclaimed)
    with pytest.raises(InternalError):
        queue.claim(CORE, 0.0)

    queue.resume(CORE)
    take(queue, CORE)

    assert held in queue.holds(CORE)
    assert queue.is_reduced


def test_scorings_release_the_training_of_their_claim():
    queue = MicroStepQueue(lease_s=10.0)
    queue.join(0, 0.0)
    queue.join(1, 0.0)
    queue.offer([QueuedClaim(work="long", num_scorings=2), QueuedClaim(work="short")])
    first, second = queue.claim(0, 0.0), queue.claim(1, 0.0)

    assert [0, 1] == [one.part for one in (first, second) if isinstance(one, ScoreLease)]
    assert queue.scored(second.lease, "of part 1")
    assert 1 == queue.num_unclaimed
    assert queue.scored(first.lease, "of part 0")
    assert 2 == queue.num_unclaimed

    granted = queue.claim(0, 0.0)

    assert ("long", ("of part 0", "of part 1")) == (granted.work, granted.scores)


def test_scores_outlive_the_cell_that_found_them():
    queue = MicroStepQueue(lease_s=10.0)
    queue.join(0, 0.0)
    queue.join(1, 0.0)
    queue.offer([QueuedClaim(work="long", num_scorings=2)])
    queue.scored(queue.claim(1, 0.0).lease, "of part 0")
    lost = queue.claim(1, 0.0)

    assert (0,) == queue.leave(1)
    assert not queue.scored(lost.lease, "too late")

    again = queue.claim(0, 0.0)

    assert 1 == again.part
    queue.scored(again.lease, "of part 1")
    assert ("of part 0", "of part 1") == queue.claim(0, 0.0).scores


@pytest.mark.parametrize(
    "refused",
    [
        lambda queue, scoring, training: queue.done(scoring),
        lambda queue, scoring, training: queue.scored(training, "nothing"),
        lambda queue, scoring, training: queue.claim(5, 0.0),
        lambda queue, scoring, training: queue.park(5),
        lambda queue, scoring, training: queue.reduce(CORE, []),
    ],
)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(refused):
    queue = MicroStepQueue(lease_s=10.0)
    queue.join(0, 0.0)
    queue.offer([QueuedClaim(work="long", num_scorings=1), QueuedClaim(work="short")])
    scoring, training = queue.claim(0, 0.0).lease, queue.claim(0, 0.0).lease
    with pytest.raises(InternalError):
        refused(queue, scoring, training)

    assert queue.scored(scoring, "found")
    assert queue.done(training)
    assert {training} == queue.holds(CORE)


def test_reports_of_an_earlier_batch_change_nothing():
    queue = queue_of("a", "b")
    done, under_way = take(queue, 1), queue.claim(1, 0.0)
    queue.clear()
    queue.offer([QueuedClaim(work="next")])

    assert not queue.done(done)
    assert not queue.done(under_way.lease)
    assert not queue.reduce(1, [done])
    assert (1, 2) == (queue.num_unclaimed, queue.num_cells)


def packing(*, num_ready, groups_per_batch, cells=(0,)):
    groups = GroupBuffer()
    for number in range(num_ready):
        groups.admit(number, version=0, size=1)
        groups.close(number, 0, number)
        groups.offer(number, is_void=False)
    queue = MicroStepQueue(lease_s=10.0)
    for cell in cells:
        queue.join(cell, 0.0)
    return BatchAssembler(groups, queue, groups_per_batch=groups_per_batch), queue


def test_nothing_is_pulled_while_the_core_does_not_train():
    buffer, queue = packing(num_ready=3, groups_per_batch=2, cells=(1,))
    buffer.open(1)

    assert buffer.pull() is None

    queue.join(CORE, 0.0)

    assert 0 == buffer.pull().number


def test_one_group_is_pulled_when_fewer_claims_wait_than_cells_train():
    buffer, queue = packing(num_ready=9, groups_per_batch=9, cells=(0, 1, 2))
    buffer.open(1)

    assert 0 == buffer.pull().number
    assert buffer.pull() is None

    buffer.pack(0, [QueuedClaim(work=one) for one in "ab"])

    assert 1 == buffer.pull().number

    buffer.pack(1, [QueuedClaim(work="c")])

    assert buffer.pull() is None

    queue.claim(0, 0.0)

    assert 2 == buffer.pull().number


def test_nothing_is_pulled_for_the_next_batch_before_the_update():
    buffer, queue = packing(num_ready=9, groups_per_batch=1)

    assert buffer.pull() is None

    buffer.open(1)
    buffer.pack(buffer.pull().number, [QueuedClaim(work="a")])
    lease = queue.claim(0, 0.0).lease

    assert buffer.is_closed
    assert not buffer.may_step
    assert buffer.pull() is None
    with pytest.raises(InternalError):
        buffer.open(2)
    with pytest.raises(InternalError):
        buffer.stepped()

    queue.done(lease)

    assert [0] == [group.number for group in buffer.stepped()]
    assert buffer.pull() is None

    buffer.open(2)

    assert 1 == buffer.pull().number


def test_a_group_without_claims_counts_and_the_batch_still_steps():
    buffer, _ = packing(num_ready=2, groups_per_batch=2)
    buffer.open(1)
    for _ in range(2):
        buffer.pack(buffer.pull().number, [])

    assert 2 == len(buffer.stepped())


def test_real_claims_pass_through_and_long_ones_are_scored_pack_by_pack():
    rows = [chain(100 * number, length) for number, length in enumerate((4, 5, 30))]
    batch = [admitted(f"e{number}", row) for number, row in enumerate(rows)]
    claims = pack(batch, pack_tokens=10, claim_tokens=20, sharing=True).claims
    queue: MicroStepQueue[Claim, tuple[Score, ...]] = MicroStepQueue(lease_s=10.0)
    queue.join(CORE, 0.0)
    queue.offer(
        [
            QueuedClaim(work=one, num_scorings=len(one.packs) if one.oversize else 0)
            for one in claims
        ]
    )
    trained = []
    while (granted := queue.claim(CORE, 0.0)) is not None:
        if isinstance(granted, ScoreLease):
            found = Score(sum_log_ratio=0.0, count=granted.work.packs[granted.part].num_targets)
            queue.scored(granted.lease, (found,))
        else:
            trained.append(granted)
            queue.done(granted.lease)
    scored = [
        sum(score.count for (score,) in one.scores) == one.work.shares[0].num_targets
        for one in trained
        if one.work.oversize
    ]

    assert [True] == scored
    assert queue.is_reduced
    assert {"e0", "e1", "e2"} == {
        share.execution for granted in trained for share in granted.work.shares
    }


class CellProcess:
    """A cell as it sees itself: it does not know when it has been fenced."""

    def __init__(self):
        self.under_way = {}
        self.sum = Counter()
        self.leases = []


class Queue(RuleBasedStateMachine):
    """Cells join, claim, score, train, fall silent, return as ghosts and are reduced, at will.

    Sums of gradients are counters of the work in them. What the core's holds when it steps is
    compared with what the batch's groups became.
    """

    queue_class = MicroStepQueue
    buffer_class = BatchAssembler

    @initialize(groups_per_batch=st.integers(1, 3))
    def begin(self, groups_per_batch):
        self.groups_per_batch = groups_per_batch
        self.open_buffers()
        self.now, self.step, self.num_groups, self.num_works = 0.0, 0, 0, 0
        self.cells, self.ghosts, self.batch, self.steps = {}, [], Counter(), []
        self.buffer.open(0)
        self.finish_groups(4)
        for cell in (0, 1):
            self.join(cell)

    def open_buffers(self):
        self.groups = GroupBuffer()
        self.queue = self.queue_class(lease_s=5.0)
        self.buffer = self.buffer_class(
            self.groups, self.queue, groups_per_batch=self.groups_per_batch
        )

    @rule(count=st.integers(1, 3))
    def finish_groups(self, count):
        for _ in range(count):
            self.finish_group(self.num_groups)
            self.num_groups += 1

    def finish_group(self, number):
        self.groups.admit(number, version=0, size=1)
        self.groups.close(number, 0, None)
        self.groups.offer(number, is_void=False)

    @rule(cell=st.integers(0, 2))
    def join(self, cell):
        """Also a cell that is in already: its process was replaced before anyone noticed."""
        if cell in self.cells:
            self.ghosts.append((cell, self.cells[cell]))
        self.queue.join(cell, self.now)
        self.cells[cell] = CellProcess()

    @rule(scorings=st.lists(st.integers(0, 2), max_size=3))
    def pull(self, scorings):
        wanted = CORE in self.queue.cells and self.queue.num_unclaimed < self.queue.num_cells
        wanted = wanted and len(self.groups.assigned) < self.groups_per_batch
        group = self.buffer.pull()
        if group is None:
            return
        assert wanted
        self.pack(group, scorings)

    def pack(self, group, scorings):
        works = range(self.num_works, self.num_works + len(scorings))
        self.num_works += len(scorings)
        self.batch.update(works)
        offers = zip(works, scorings, strict=True)
        self.buffer.pack(
            group.number, [QueuedClaim(work=work, num_scorings=parts) for work, parts in offers]
        )

    @rule(cell=st.integers(0, 2), count=st.integers(1, 3))
    def claim(self, cell, count):
        for _ in range(count):
            if cell in self.cells and (granted := self.queue.claim(cell, self.now)) is not None:
                self.cells[cell].under_way[granted.lease] = granted

    @rule(
        scorings=st.lists(st.integers(0, 1), min_size=1, max_size=3),
        cell=st.integers(0, 2),
        count=st.integers(0, 4),
    )
    def go_on(self, scorings, cell, count):
        """What mostly happens: a group is pulled, some claims are done, some begun."""
        self.pull(scorings)
        for _ in range(count):
            if cell in self.cells and (granted := self.queue.claim(cell, self.now)) is not None:
                self.do(self.cells[cell], granted)
        self.claim(cell, 2)

    def everybody(self):
        return [*self.cells.items(), *self.ghosts]

    @rule(data=st.data(), twice=st.booleans())
    def work(self, data, twice):
        busy = [process for _, process in self.everybody() if process.under_way]
        if not busy:
            return
        process = data.draw(st.sampled_from(busy))
        granted = process.under_way.pop(data.draw(st.sampled_from(sorted(process.under_way))))
        self.do(process, granted)
        if twice and isinstance(granted, TrainLease):
            assert self.queue.done(granted.lease) == self.counts(granted.lease)

    def do(self, process, granted):
        if isinstance(granted, ScoreLease):
            self.queue.scored(granted.lease, (granted.work, granted.part))
            return
        found = tuple((granted.work, part) for part in range(len(granted.scores)))
        assert found == granted.scores
        process.sum[granted.work] += 1
        process.leases.append(granted.lease)
        counts = self.queue.done(granted.lease)
        assert counts == self.counts(granted.lease)
        if not counts and self.cells.get(granted.cell) is process:
            self.join(granted.cell)

    def counts(self, lease):
        return any(lease in self.queue.holds(cell) for cell in self.cells)

    @rule(data=st.data())
    def hand_back(self, data):
        busy = [process for _, process in self.everybody() if process.under_way]
        if busy:
            process = data.draw(st.sampled_from(busy))
            lease = data.draw(st.sampled_from(sorted(process.under_way)))
            del process.under_way[lease]
            self.queue.hand_back(lease)

    @rule(data=st.data())
    def reduce(self, data):
        """The gradient of a satellite arrives, perhaps of one that was fenced long ago."""
        senders = [(cell, one) for cell, one in self.everybody() if cell != CORE and one.leases]
        if not senders or CORE not in self.cells:
            return
        cell, process = data.draw(st.sampled_from(senders))
        if self.queue.reduce(cell, process.leases):
            core = self.cells[CORE]
            core.sum += process.sum
            core.leases += process.leases
            process.sum, process.leases = Counter(), []

    @rule(cell=st.integers(1, 8))
    def replace_while_it_sends(self, cell):
        """What was sent before another process took its place arrives after."""
        if CORE in self.cells and cell in self.cells and self.cells[cell].leases:
            leases = self.cells[cell].leases
            self.join(cell)
            assert not self.queue.reduce(cell, leases)

    @rule(cell=st.integers(0, 5))
    def leave(self, cell):
        """Cells above 2 are no cells, so that it does not happen all the time."""
        if cell in self.cells:
            self.queue.leave(cell)
            self.ghosts.append((cell, self.cells.pop(cell)))

    @rule(later=st.sampled_from([1.0, 3.0, 6.0]), silent=st.integers(0, 5))
    def pass_time(self, later, silent):
        beating = {0, 1, 2} - {silent}
        self.now += later
        for cell in beating:
            assert (cell in self.cells) == self.queue.beat(cell, self.now)
        for cell in self.queue.fence(self.now):
            assert cell not in beating
            self.ghosts.append((cell, self.cells.pop(cell)))

    @precondition(lambda self: CORE in self.cells)
    @rule()
    def park_and_resume(self):
        self.queue.park(CORE)
        assert self.buffer.pull() is None
        self.queue.resume(CORE)

    @precondition(lambda self: self.buffer.may_step)
    @rule()
    def take_step(self):
        assert self.batch == self.cells[CORE].sum
        self.step += 1
        consumed = [group.number for group in self.buffer.stepped()]
        assert self.groups_per_batch == len(consumed)
        assert not set(consumed) & {one for numbers in self.steps for one in numbers}
        self.steps.append(consumed)
        self.start_batch()

    @rule(is_needed=st.integers(0, 7))
    def begin_again(self, is_needed):
        """Another process recalls every group, and goes on with the batch that was open."""
        if is_needed != 7:
            return
        assigned = self.groups.assigned
        self.open_buffers()
        for number in range(self.num_groups):
            self.finish_group(number)
        for step, numbers in enumerate((*self.steps, assigned)):
            self.buffer.open(step)
            for number in numbers:
                self.buffer.recall(number, step)
            if step < self.step:
                recalled = self.buffer.recall_step()
                assert numbers == [group.number for group in recalled]
        self.batch = Counter()
        # What was granted is reported to the process that granted it, which is gone.
        self.cells, self.ghosts = {}, []
        while (group := self.buffer.unpacked) is not None:
            self.pack(group, [0, 1])
        assert assigned == self.groups.assigned

    def start_batch(self):
        self.batch = Counter()
        for process in self.cells.values():
            process.sum, process.leases = Counter(), []
        self.buffer.open(self.step)

    def teardown(self):
        """From wherever things stand, a benign world takes the step."""
        if not hasattr(self, "buffer"):
            return
        self.finish_groups(3)
        for cell in (0, 1):
            if cell not in self.queue.cells:
                self.join(cell)
        for cell in list(self.cells):
            for lease in list(self.cells[cell].under_way):
                self.queue.hand_back(lease)
            self.cells[cell].under_way.clear()
        for _ in range(1000):
            if self.buffer.is_closed and self.queue.is_done:
                break
            self.pull([1, 0])
            for cell, process in self.cells.items():
                if (granted := self.queue.claim(cell, self.now)) is not None:
                    self.do(process, granted)
        for cell, process in self.cells.items():
            if cell != CORE:
                assert self.queue.reduce(cell, process.leases)
                self.cells[CORE].sum += process.sum
                self.cells[CORE].leases += process.leases
        assert self.buffer.may_step
        self.take_step()

    @invariant()
    def a_claim_is_in_one_place(self):
        held = [lease for cell in self.cells for lease in self.queue.holds(cell)]

        assert len(held) == len(set(held)) <= self.queue.num_claims
        assert self.queue.is_done == (len(held) == self.queue.num_claims)

    @invariant()
    def a_sum_holds_what_the_queue_thinks(self):
        for cell, process in self.cells.items():
            assert self.queue.holds(cell) == set(process.leases)

    @invariant()
    def the_core_steps_with_the_whole_batch_and_no_more(self):
        if self.buffer.may_step:
            assert self.batch == self.cells[CORE].sum


TestQueue = Queue.TestCase


class ForgetsWhatWasDone(MicroStepQueue):
    """The done claims of a cell that dies are not returned."""

    def leave(self, cell):
        if cell in self._cells:
            self._cells[cell].done.clear()
        return super().leave(cell)


class AddsAnyGradient(MicroStepQueue):
    """The gradient of a ghost is added like any other."""

    def reduce(self, cell, leases):
        if cell in self._cells and CORE in self._cells:
            super().reduce(cell, self.holds(cell))
            return True
        return False


class KeepsReducedWithoutCore(MicroStepQueue):
    """What was reduced is thought to survive the core."""

    def join(self, cell, now):
        held = dict(self._cells[cell].done) if cell in self._cells else {}
        super().join(cell, now)
        if cell == CORE:
            self._cells[cell].done = held
            self._waiting = [one for one in self._waiting if one[0] not in held.values()]
        return ()


class ReturnsOnlyOneClaim(MicroStepQueue):
    """The other claims under way at a cell that is gone stay with it."""

    def leave(self, cell):
        if cell in self._cells:
            self._cells[cell].leases = set(sorted(self._cells[cell].leases)[:1])
        return super().leave(cell)


class LeasesTwice(MicroStepQueue):
    """A claim is handed out and still waits."""

    def claim(self, cell, now):
        waiting = list(self._waiting)
        granted = super().claim(cell, now)
        if granted is not None and granted.claim == 0:
            self._waiting = waiting
        return granted


class PullsEarly(BatchAssembler):
    """Groups are pulled however many claims wait."""

    @property
    def wants_group(self):
        return self._batch.unpacked is None and self.num_needed > 0


class StepsEarly(BatchAssembler):
    """The update does not wait for gradients on their way."""

    @property
    def may_step(self):
        return self.is_closed and self._queue.is_done and self._queue.trains(CORE)


@pytest.mark.parametrize(
    "fault",
    [
        ForgetsWhatWasDone,
        AddsAnyGradient,
        KeepsReducedWithoutCore,
        ReturnsOnlyOneClaim,
        LeasesTwice,
        PullsEarly,
        StepsEarly,
    ],
)
def test_the_machine_finds_a_planted_fault(fault):
    class Planted(Queue):
        queue_class = fault if issubclass(fault, MicroStepQueue) else MicroStepQueue
        buffer_class = fault if issubclass(fault, BatchAssembler) else BatchAssembler

    tries = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises((AssertionError, InternalError, KeyError, TypeError)):
        run_state_machine_as_test(Planted, settings=tries)
