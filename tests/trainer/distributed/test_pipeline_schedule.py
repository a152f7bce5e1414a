"""Any stream of headers gives every micro-step one forward and one backward on every stage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.trainer.distributed.pipeline_schedule import (
    BackwardAction,
    ForwardAction,
    HeaderKind,
    Schedule,
)
from gyre.trainer.distributed.rank_comm import depth
from gyre.types.errors import InternalError

RUN, SCORE, PAUSE, CLOSE = HeaderKind.RUN, HeaderKind.SCORE, HeaderKind.PAUSE, HeaderKind.CLOSE

streams = st.lists(st.sampled_from([RUN, RUN, RUN, SCORE, PAUSE, CLOSE]), max_size=30)


def actions(stage, stages, headers):
    schedule = Schedule(stage, stages)
    return [schedule.hear(kind) for kind in headers]


def flat(heard):
    return [action for one in heard for action in one]


def test_the_first_of_two_stages_goes_back_one_micro_step_later():
    assert [
        [ForwardAction(0, is_kept=True)],
        [ForwardAction(1, is_kept=True), BackwardAction(0)],
        [],
        [ForwardAction(2, is_kept=True), BackwardAction(1)],
        [BackwardAction(2)],
    ] == actions(0, 2, [RUN, RUN, PAUSE, RUN, CLOSE])


def test_the_last_stage_keeps_nothing_in_flight():
    assert [
        [ForwardAction(0, is_kept=True), BackwardAction(0)],
        [ForwardAction(1, is_kept=False)],
        [ForwardAction(2, is_kept=True), BackwardAction(2)],
        [],
    ] == actions(2, 3, [RUN, SCORE, RUN, CLOSE])


@pytest.mark.parametrize(("stage", "stages"), [(1, 1), (-1, 2), (0, 0)])
def test_a_stage_that_does_not_exist_is_refused(stage, stages):
    with pytest.raises(InternalError, match="there is no stage"):
        Schedule(stage, stages)


@given(headers=streams, stages=st.integers(1, 4))
def test_every_micro_step_has_one_forward_and_one_backward_in_order(headers, stages):
    headers = [*headers, CLOSE]
    work = [kind for kind in headers if kind in {RUN, SCORE}]
    to_train = [serial for serial, kind in enumerate(work) if kind == RUN]
    for stage in range(stages):
        done = flat(actions(stage, stages, headers))
        forward = [(one.serial, one.is_kept) for one in done if isinstance(one, ForwardAction)]

        assert [(serial, kind == RUN) for serial, kind in enumerate(work)] == forward
        assert to_train == [one.serial for one in done if isinstance(one, BackwardAction)]


@given(headers=streams, stages=st.integers(1, 4))
def test_what_is_in_flight_is_bounded_and_all_stages_pause_at_one_point(headers, stages):
    for stage in range(stages):
        schedule = Schedule(stage, stages)
        filled, peak = 0, 0
        for kind in headers:
            before = len(schedule.in_flight)
            schedule.hear(kind)
            filled = {RUN: filled + 1, CLOSE: 0}.get(kind, filled)
            peak = max(peak, before + (kind == RUN))

            assert min(filled, stages - stage - 1) == len(schedule.in_flight)

        assert stages - stage >= peak


class World:
    """Stages that act whenever they can, over lines that hold back a sender who is far ahead."""

    def __init__(self, stages, headers):
        self.stages = stages
        self.to_send = list(headers)
        self.headers = [[] for _ in range(stages)]
        self.schedules = [Schedule(stage, stages) for stage in range(stages)]
        self.pending = [[] for _ in range(stages)]
        self.ahead = [[] for _ in range(stages)]
        """Activations on their way to each stage."""
        self.back = [[] for _ in range(stages)]
        """Gradients on their way to each stage."""
        self.results = []
        self.collected = []
        self.num_sent = 0

    def steps(self):
        """Everything that could happen next, as functions."""
        found = [step for stage in range(self.stages) if (step := self._step(stage))]
        if drive := self._drive():
            found.append(drive)
        return found

    def _drive(self):
        """The driver hears its own header when it has acted and collected what is due."""
        if self.pending[0] or self.headers[0]:
            return None
        last = not self.to_send
        if self.num_sent - len(self.collected) > (0 if last else self.stages):
            return self._collect if self.results else None
        if last or any(len(one) >= depth(self.stages) for one in self.headers):
            return None
        return self._send

    def _collect(self):
        self.collected.append(self.results.pop(0))

    def _send(self):
        kind = self.to_send.pop(0)
        self.num_sent += kind in {RUN, SCORE}
        for one in self.headers:
            one.append(kind)

    def _step(self, stage):
        if not self.pending[stage]:
            return (lambda: self._hear(stage)) if self.headers[stage] else None
        is_first, is_last = stage == 0, stage == self.stages - 1
        match self.pending[stage][0]:
            case ForwardAction():
                ready = is_first or self.ahead[stage]
                full = self.results if is_last else self.ahead[stage + 1]
            case BackwardAction():
                ready = is_last or self.back[stage]
                full = [] if is_first else self.back[stage - 1]
        if not ready or len(full) >= depth(self.stages):
            return None
        return lambda: self._act(stage)

    def _hear(self, stage):
        self.pending[stage] = self.schedules[stage].hear(self.headers[stage].pop(0))

    def _act(self, stage):
        action = self.pending[stage].pop(0)
        is_first, is_last = stage == 0, stage == self.stages - 1
        if isinstance(action, ForwardAction):
            assert is_first or action == self.ahead[stage].pop(0)
            (self.results if is_last else self.ahead[stage + 1]).append(action)
            return
        assert is_last or action == self.back[stage].pop(0)
        if not is_first:
            self.back[stage - 1].append(action)


@given(headers=streams, stages=st.integers(1, 4), choices=st.randoms(use_true_random=False))
def test_no_order_of_events_leaves_a_stage_waiting_for_ever(headers, stages, choices):
    world = World(stages, [*headers, CLOSE])
    while ready := world.steps():
        choices.choice(ready)()
    work = [kind for kind in headers if kind in {RUN, SCORE}]

    assert list(range(len(work))) == [one.serial for one in world.collected]
    assert [()] * stages == [one.in_flight for one in world.schedules]
    assert [] == [*world.to_send, *world.results]
    assert [[]] * 4 * stages == world.pending + world.headers + world.ahead + world.back
