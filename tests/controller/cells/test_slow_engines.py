"""Slow engines: said once, by comparison with their peers, where there is work to judge."""

from gyre.controller.cells.health import LOOK_S, SLOW, WINDOW_S, TokenRates


class Engines:
    """Each with some calls in flight, and so many tokens a second for all of them together."""

    def __init__(self):
        self.paces = TokenRates()
        self.now = 0.0
        self.tokens = {}

    def windows(self, count, **rates):
        """What is said during so many windows; rates are (calls, tokens a second) by engine."""
        said = []
        rates = {int(name[1:]): one for name, one in rates.items()}
        for _ in range(count * int(WINDOW_S / LOOK_S)):
            for engine, (_, speed) in rates.items():
                self.tokens[engine] = self.tokens.get(engine, 0) + int(speed * LOOK_S)
            found = {engine: (calls, self.tokens[engine]) for engine, (calls, _) in rates.items()}
            said += self.paces.look(self.now, found)
            self.now += LOOK_S
        return said


def test_an_engine_ten_times_slower_than_its_peers_is_said_so_once():
    (slow,) = Engines().windows(4, e0=(2, 100), e1=(2, 100), e2=(2, 100 / SLOW - 1))

    assert 2 == slow.engine
    assert 0.02 == slow.peers_token_s
    assert SLOW * slow.peers_token_s < slow.token_s


def test_one_that_samples_nothing_at_all_is_slow():
    (slow,) = Engines().windows(2, e0=(2, 100), e1=(1, 0))

    assert 1 == slow.engine


def test_engines_that_are_busy_in_different_ways_are_not():
    """A pace is by call: one with many calls and tokens is no faster than one with few."""
    assert [] == Engines().windows(3, e0=(40, 1000), e1=(1, 25), e2=(0, 0))


def test_an_engine_without_peers_is_compared_with_nobody():
    assert [] == Engines().windows(3, e0=(4, 1))


def test_one_that_has_been_as_fast_as_others_meanwhile_may_be_slow_again():
    engines = Engines()
    slow, well = {"e0": (2, 100), "e1": (2, 1)}, {"e0": (2, 100), "e1": (2, 100)}

    assert 1 == len(engines.windows(2, **slow))
    assert [] == engines.windows(2, **well)
    assert 1 == len(engines.windows(2, **slow))


def test_a_proxy_that_counts_anew_makes_nobody_slow():
    engines = Engines()
    rates = {"e0": (2, 100), "e1": (2, 100)}
    engines.windows(1, **rates)
    engines.tokens.clear()

    assert [] == engines.windows(2, **rates)
