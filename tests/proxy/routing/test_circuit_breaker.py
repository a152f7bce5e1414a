"""When an engine is trusted with calls."""

from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.routing.circuit_breaker import BreakerState, CircuitBreaker


def breaker():
    return CircuitBreaker(break_after=3, probe_s=1.0)


def broken():
    one = breaker()
    one.failed(at_once=True)
    return one


def test_it_breaks_after_so_many_failures_in_a_row():
    one = breaker()

    assert [False, False, True, False] == [one.failed() for _ in range(4)]
    assert BreakerState.OPEN is one.trust
    assert not one.admits


def test_a_finished_call_clears_the_failures_before_it():
    one = breaker()
    one.failed()
    one.failed()
    one.finished()

    assert [False, False, True] == [one.failed() for _ in range(3)]


def test_tokens_alone_do_not_clear_failures():
    """An engine that dies in every call after a few tokens is broken, too."""
    one = breaker()
    outcomes = []
    for _ in range(3):
        one.sampled()
        outcomes.append(one.failed())

    assert [False, False, True] == outcomes


def test_a_refused_connection_breaks_it_at_once():
    one = breaker()

    assert one.failed(at_once=True)
    assert not one.admits


def test_after_a_probe_it_gets_one_call_until_that_has_sampled():
    one = broken()
    one.probed(True)

    assert BreakerState.TRIAL is one.trust
    assert one.admits
    one.given()
    assert not one.admits
    assert one.sampled()
    assert one.admits
    assert BreakerState.CLOSED is one.trust


def test_a_trial_that_came_to_nothing_is_given_to_another_call():
    one = broken()
    one.probed(True)
    one.given()
    one.returned()

    assert one.admits


def test_one_failure_after_a_trial_breaks_it_again():
    one = broken()
    one.probed(True)
    one.given()
    one.sampled()

    assert one.failed()


def test_a_finished_call_after_a_trial_restores_it():
    one = broken()
    one.probed(True)
    one.given()
    one.finished()

    assert [False, False, True] == [one.failed() for _ in range(3)]


def test_probes_come_at_growing_distances_until_a_call_finishes():
    one = broken()
    pauses = []
    for _ in range(6):
        pauses.append(one.pause_s)
        one.probed(False)
    one.probed(True)
    one.finished()
    one.failed(at_once=True)

    assert [1.0, 2.0, 4.0, 8.0, 8.0, 8.0] == pauses
    assert 1.0 == one.pause_s


def test_trials_that_fail_move_probes_apart():
    """An engine may answer probes and refuse calls."""
    one = broken()
    pauses = []
    for _ in range(3):
        one.probed(True)
        one.given()
        one.failed()
        pauses.append(one.pause_s)

    assert [2.0, 4.0, 8.0] == pauses


@given(st.lists(st.sampled_from(["given", "returned", "sampled", "finished", "failed", "gone"])))
def test_a_broken_engine_gets_nothing_until_a_probe_succeeds(happenings):
    one = broken()
    for what in happenings:
        if what == "gone":
            one.failed(at_once=True)
        else:
            getattr(one, what)()

    assert not one.admits
    assert BreakerState.OPEN is one.trust
