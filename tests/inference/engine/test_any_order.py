"""Asks, passes, cancels, loads, pins and rests in any order: every token is right, none is lost."""

import math
from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.inference.engine.test_engine import prompt
from tests.inference.support.slow_engine import (
    ask,
    distribution,
    drawn,
    logits_after,
    loop,
    network,
    told,
    uniform,
    weights,
)

from gyre.inference.engine.model_runner import PlainForward
from gyre.inference.engine.request import RequestFailed

NETWORKS = {seed: network(seed=seed) for seed in (1, 2)}
MEMORY = {}
"""What the slow engine found, by weights, tokens and sampling."""


def next_of(seed, ids, sampling):
    key = (seed, array("i", ids).tobytes(), sampling.top_k, sampling.temperature)
    if key not in MEMORY:
        MEMORY[key] = distribution(logits_after(NETWORKS[seed], ids), sampling)
    return MEMORY[key]


class AheadForward(PlainForward):
    """On a CPU nothing is computed meanwhile; the order of what happens is that of a GPU."""

    returns_early = True


class EngineMachine(RuleBasedStateMachine):
    """A small engine with little memory, so that calls step back often."""

    @initialize(
        kv_tokens=st.sampled_from([48, 80, 400]),
        prefill_tokens=st.sampled_from([3, 16]),
        capacity=st.sampled_from([1, 3, 8]),
        make_forward=st.sampled_from([PlainForward, AheadForward]),
    )
    def begin(self, kv_tokens, prefill_tokens, capacity, make_forward):
        self.engine = loop(
            network(seed=1),
            version=1,
            make_forward=make_forward,
            kv_tokens=kv_tokens,
            prefill_tokens=prefill_tokens,
            capacity=capacity,
        )
        self.seeds = {1: 1}
        """Weights by version."""
        self.asks, self.answers, self.open, self.pins = {}, {}, set(), []
        self.resting = False

    @precondition(lambda self: not self.resting)
    @rule(
        length=st.integers(1, 30),
        family=st.integers(0, 1),
        max_tokens=st.integers(1, 12),
        top_k=st.sampled_from([None, 4]),
    )
    def submit(self, length, family, max_tokens, top_k):
        name = f"a{len(self.asks)}"
        ids = (prompt(12, seed=family) + prompt(40))[:length]
        self.asks[name] = ask(ids, name, max_tokens=max_tokens, top_k=top_k, seed=len(self.asks))
        self.engine.submit(self.asks[name])
        self.answers[name] = told()
        self.open.add(name)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.take(self.engine.step())

    def take(self, reports):
        for report in reports:
            assert not isinstance(report, RequestFailed)
            self.answers[report.id].take(report.chunk)
            if report.chunk.finish is not None:
                self.open.remove(report.id)

    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.asks) or ["nobody"]))
        chunks = self.engine.cancel(name)

        assert bool(chunks) == (name in self.open)
        if chunks:
            self.open.remove(name)
            assert self.answers[name].ids == [one for chunk in chunks for one in chunk.ids]

    @rule(seed=st.sampled_from([1, 2]))
    def load(self, seed):
        version = max(self.seeds) + 1
        self.engine.load(weights(NETWORKS[seed]), version=version)
        self.seeds[version] = seed

    @precondition(lambda self: not self.resting)
    @rule(data=st.data())
    def pin(self, data):
        if self.open:
            self.pins.append(self.engine.pin(data.draw(st.sampled_from(sorted(self.open)))))

    @rule()
    def unpin(self):
        if self.pins:
            self.engine.release(self.pins.pop())

    @rule()
    def offload(self):
        self.take(self.engine.offload())
        self.resting = True
        self.pins.clear()

        assert set() == self.open

    @rule()
    def wake(self):
        self.engine.wake()
        self.resting = False

    @invariant()
    def what_was_said_is_right(self):
        for name, answer in getattr(self, "answers", {}).items():
            asked = self.asks[name]
            ids = array("i", asked.input_ids).tolist()
            for number, (token, logprob) in enumerate(
                zip(answer.ids, answer.logprobs, strict=True)
            ):
                seed = self.seeds[answer.versions[number]]
                wanted = next_of(seed, ids + answer.ids[:number], asked.sampling)
                assert drawn(wanted, uniform(asked.sampling.seed + number)) == token
                assert math.log(wanted[token]) == pytest.approx(logprob, abs=1e-5)
            if answer.echoes is not None:
                assert [ids] == answer.echoes

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for pin in self.pins:
            self.engine.release(pin)
        self.engine.wake()
        while self.engine.has_calls:
            self.take(self.engine.step())
        self.what_was_said_is_right()
        for name, answer in self.answers.items():
            if answer.finish == "length":
                assert self.asks[name].sampling.max_tokens == len(answer.ids)
        found = self.engine.capacity()
        assert found.blocks == found.available_blocks


@pytest.mark.slow
class TestEngine(EngineMachine.TestCase):
    """The machine above; an example takes as long as fifty of a pure one."""

    settings = settings(max_examples=30, stateful_step_count=30)
