"""Which engine takes the next call."""

from gyre.proxy.routing.circuit_breaker import CircuitBreaker
from gyre.proxy.routing.engine_pool import EngineSlots, RoutedCall, choose
from gyre.types.ids import EngineName

A, B, C = (EngineName(name) for name in "abc")


def room(name, taken, capacity=4):
    made = EngineSlots(
        name=name, capacity=capacity, breaker=CircuitBreaker(break_after=3, probe_s=1.0)
    )
    for order in range(taken):
        made.assign(RoutedCall(execution="e", order=order, progress_at=0.0, last=None))
    return made


def test_the_emptiest_takes_it_and_the_first_listed_on_a_tie():
    rooms = [room(A, 2), room(B, 1), room(C, 1)]

    assert B == choose(rooms).name


def test_an_execution_stays_with_its_engine_while_that_has_room():
    rooms = [room(A, 3), room(B, 0)]

    assert A == choose(rooms, last=A).name


def test_an_engine_that_is_full_passes_the_call_on():
    rooms = [room(A, 4), room(B, 3)]

    assert B == choose(rooms, last=A).name


def test_an_engine_that_just_failed_the_call_is_the_last_resort():
    assert B == choose([room(A, 0), room(B, 3)], last=A, failed_at=A).name
    assert A == choose([room(A, 0), room(B, 4)], last=A, failed_at=A).name


def test_an_engine_that_refused_the_call_is_none():
    assert choose([room(A, 0)], refused_by={A}) is None


def test_draining_and_broken_engines_take_nothing():
    draining, broken = room(A, 0), room(B, 0)
    draining.draining = True
    broken.breaker.failed(at_once=True)

    assert choose([draining, broken]) is None
    assert [False, False] == [draining.is_open, broken.is_open]
