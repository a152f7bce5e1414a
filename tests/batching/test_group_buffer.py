"""The trajectory buffer: ready when all have closed, oldest first, consumed once."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gyre.batching.group_buffer import GroupBuffer, GroupStage
from gyre.types.errors import InternalError


def ready_buffer(versions):
    """Groups of one execution each."""
    buffer = GroupBuffer()
    for number, version in enumerate(versions):
        buffer.admit(number, version=version, size=1)
        buffer.close(number, 0, f"record {number}")
        buffer.offer(number, is_void=False)
    return buffer


def stages(buffer, count):
    return [buffer.stage(number) for number in range(count)]


def pull_all(buffer):
    found = []
    while (number := buffer.oldest()) is not None:
        found.append(buffer.assign(number).number)
    return found


def test_a_group_waits_with_what_its_executions_left_until_it_is_ready():
    buffer = GroupBuffer()
    buffer.admit(7, version=3, size=3)
    for member, kept in ((2, "c"), (0, None), (1, "b")):
        buffer.close(7, member, kept)

    assert buffer.oldest() is None

    buffer.offer(7, is_void=False)

    assert 7 == buffer.oldest()

    group = buffer.assign(7)

    assert (None, "b", "c") == group.kept
    assert (3, False) == (group.version, group.is_void)


@pytest.mark.parametrize("is_void", [True, False])
def test_a_void_group_is_consumed_and_counted_apart(is_void):
    buffer = GroupBuffer()
    buffer.admit(0, version=0, size=1)
    buffer.close(0, 0, None)
    buffer.offer(0, is_void=is_void)

    assert is_void == buffer.assign(0).is_void
    assert [is_void] == [group.is_void for group in buffer.consume(0)]


def test_the_oldest_version_goes_first_and_the_lowest_number_among_equals():
    assert [1, 3, 0, 4, 2] == pull_all(ready_buffer([2, 1, 4, 1, 2]))


def test_a_group_may_be_chosen_out_of_order():
    buffer = ready_buffer([0, 0, 0])
    buffer.assign(1)

    assert [0, 2] == pull_all(buffer)
    assert (1, 0, 2) == buffer.assigned


def test_a_step_consumes_what_was_assigned_and_nothing_else():
    buffer = ready_buffer([0, 0, 1])
    buffer.assign(0)

    assert [0] == [group.number for group in buffer.consume(0)]
    assert () == buffer.consume(1)
    assert [GroupStage.CONSUMED, GroupStage.READY, GroupStage.READY] == stages(buffer, 3)


def test_a_step_gives_its_groups_again_in_the_order_it_had_them():
    buffer = ready_buffer([0, 0, 0])
    for number in (2, 0):
        buffer.assign(number)
    buffer.consume(0)
    buffer.assign(1)
    buffer.consume(1)

    assert [2, 0] == [group.number for group in buffer.consumed_by(0)]
    assert [("record 1",)] == [group.kept for group in buffer.consumed_by(1)]


def test_groups_that_a_checkpoint_covers_are_forgotten():
    buffer = ready_buffer([0, 0])
    for step in (0, 1):
        buffer.assign(buffer.oldest())
        buffer.consume(step)
    buffer.forget(1)

    assert buffer.stage(0) is None
    assert GroupStage.CONSUMED is buffer.stage(1)
    assert [1] == [group.number for group in buffer.consumed_by(1)]


@pytest.mark.parametrize(
    "refused",
    [
        lambda buffer: buffer.admit(0, version=0, size=1),
        lambda buffer: buffer.admit(9, version=0, size=0),
        lambda buffer: buffer.close(0, 0, "again"),
        lambda buffer: buffer.close(1, 0, "again"),
        lambda buffer: buffer.close(1, 2, "no member"),
        lambda buffer: buffer.close(8, 0, "unknown"),
        lambda buffer: buffer.offer(0, is_void=True),
        lambda buffer: buffer.offer(1, is_void=False),
        lambda buffer: buffer.offer(8, is_void=False),
        lambda buffer: buffer.assign(1),
        lambda buffer: buffer.assign(2),
        lambda buffer: buffer.assign(8),
        lambda buffer: buffer.assigned_group(0),
        lambda buffer: buffer.consume(3),
        lambda buffer: buffer.consumed_by(2),
        lambda buffer: buffer.consumed_by(4),
    ],
)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(refused):
    """Group 0 is ready, 1 is half closed, 2 is assigned; steps 2 and 3 are taken, 2 is covered."""
    buffer = GroupBuffer()
    buffer.consume(2)
    buffer.consume(3)
    buffer.forget(3)
    for number, size in enumerate((1, 2, 1)):
        buffer.admit(number, version=0, size=size)
        buffer.close(number, 0, "record")
    buffer.offer(0, is_void=False)
    buffer.offer(2, is_void=False)
    buffer.assign(2)
    before = stages(buffer, 3), buffer.assigned

    with pytest.raises(InternalError):
        refused(buffer)

    assert before == (stages(buffer, 3), buffer.assigned)

    buffer.close(1, 1, "last")
    buffer.offer(1, is_void=False)

    assert ("record", "last") == buffer.assign(1).kept
    assert not buffer.assign(0).is_void


class Buffer(RuleBasedStateMachine):
    """Admissions, closings, pulls, steps, checkpoints and replays in any order."""

    buffer_class = GroupBuffer

    @initialize()
    def begin(self):
        self.buffer = self.buffer_class()
        self.published = self.version = self.durable = 0
        self.versions, self.open, self.closed, self.void = {}, {}, set(), set()
        self.ready, self.assigned, self.steps = set(), [], []
        """Steps: the groups that each consumed, in order."""

    @rule(size=st.integers(1, 4), publish=st.booleans())
    def admit(self, size, publish):
        self.published += publish
        number = len(self.versions)
        self.buffer.admit(number, version=self.published, size=size)
        self.versions[number] = self.published
        self.open[number] = set(range(size))

    @rule(data=st.data())
    def close(self, data):
        if not self.open:
            return
        number = data.draw(st.sampled_from(sorted(self.open)))
        member = data.draw(st.sampled_from(sorted(self.open[number])))
        self.open[number].remove(member)
        self.buffer.close(number, member, (number, member))
        if not self.open[number]:
            del self.open[number]
            self.closed.add(number)

    @rule(data=st.data(), is_void=st.booleans())
    def offer(self, data, is_void):
        if self.closed:
            self.ready_up(data.draw(st.sampled_from(sorted(self.closed))), is_void)

    def ready_up(self, number, is_void):
        self.buffer.offer(number, is_void=is_void)
        self.closed.remove(number)
        self.ready.add(number)
        self.void |= {number} if is_void else set()

    @rule(is_void=st.booleans())
    def go_on(self, is_void):
        """What mostly happens: a group comes and one is consumed."""
        number = len(self.versions)
        self.buffer.admit(number, version=self.published, size=1)
        self.versions[number] = self.published
        self.buffer.close(number, 0, (number, 0))
        self.closed.add(number)
        self.ready_up(number, is_void)
        self.pull()
        self.consume()

    @rule()
    def pull(self):
        number = self.buffer.oldest()

        assert number == min(self.ready, key=lambda one: (self.versions[one], one), default=None)
        if number is not None:
            self.assign(number)

    @rule(data=st.data())
    def choose(self, data):
        if self.ready:
            self.assign(data.draw(st.sampled_from(sorted(self.ready))))

    def assign(self, number):
        group = self.buffer.assign(number)
        self.ready.remove(number)
        self.assigned.append(number)

        assert [(number, member) for member in range(len(group.kept))] == list(group.kept)
        assert group.is_void == (number in self.void)

    @rule()
    def consume(self):
        numbers = [group.number for group in self.buffer.consume(self.version)]

        assert self.assigned == numbers
        self.steps.append(numbers)
        self.version += 1
        self.assigned = []

    @rule(data=st.data())
    def forget(self, data):
        self.durable = data.draw(st.integers(self.durable, self.version))
        self.buffer.forget(self.durable)

    @invariant()
    def steps_that_no_checkpoint_covers_can_be_replayed(self):
        for step in range(self.durable, self.version):
            groups = self.buffer.consumed_by(step)

            assert self.steps[step] == [group.number for group in groups]
            for group in groups:
                assert [(group.number, one) for one in range(len(group.kept))] == list(group.kept)

    @invariant()
    def every_group_is_at_its_stage(self):
        expected = dict.fromkeys([*self.open, *self.closed], GroupStage.OPEN)
        expected |= dict.fromkeys(self.ready, GroupStage.READY)
        expected |= dict.fromkeys(self.assigned, GroupStage.ASSIGNED)
        for step, numbers in enumerate(self.steps):
            assert not expected.keys() & set(numbers)
            is_kept = step >= self.durable
            expected |= dict.fromkeys(numbers, GroupStage.CONSUMED if is_kept else None)

        assert len(self.versions) == len(expected)
        assert expected == {number: self.buffer.stage(number) for number in expected}


TestBuffer = Buffer.TestCase


class YoungestFirst(GroupBuffer):
    """The newest version is pulled."""

    def oldest(self):
        ready = [entry for entry in self._ready if self.stage(entry[1]) is GroupStage.READY]
        return max(ready, default=(0, None))[1]

    def assign(self, number):
        self._ready.sort(key=lambda entry: entry[1] != number)
        return super().assign(number)


class ReplaysByNumber(GroupBuffer):
    """The groups of a step come back in the order of their admission."""

    def consumed_by(self, step):
        return tuple(sorted(super().consumed_by(step), key=lambda group: group.number))


class ForgetsOneMore(GroupBuffer):
    """Groups of a step that no checkpoint covers are forgotten."""

    def forget(self, version):
        super().forget(version + 1)


@pytest.mark.parametrize("fault", [YoungestFirst, ReplaysByNumber, ForgetsOneMore])
def test_the_machine_finds_a_planted_fault(fault):
    class Planted(Buffer):
        buffer_class = fault

    tries = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises((AssertionError, InternalError)):
        run_state_machine_as_test(Planted, settings=tries)
