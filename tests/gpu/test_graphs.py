"""What a captured graph samples is what is sampled without one, whatever the number of calls."""

from array import array

import pytest
import torch
from tests.gpu.test_cell import network

from gyre.engine.graphs import GraphForward
from gyre.engine.loop import Loop
from gyre.engine.sampler import sample_packed
from gyre.words.samples import Ask, Sampling
from gyre.words.sections import EngineSection

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


class Compared(GraphForward):
    """Samples twice: as it does, and without a graph."""

    def __init__(self, network, store):
        super().__init__(network, store, graphs=True)
        self.found, self.expected = [], []

    def sample(self, logits, draws):
        self.expected.append(sample_packed(logits, draws.on(logits.device))[1].cpu())
        ids, packed = super().sample(logits, draws)
        self.found.append(packed.to("cpu", copy=True))
        assert packed[:, 0].tolist() == ids.tolist()
        return ids, packed


WAYS = {
    "plain": [{}],
    "heated": [{}, {"temperature": 0.6}, {"temperature": 1.4}],
    "greedy": [{}, {"temperature": 0}],
    "cut": [{}, {"top_p": 0.7}, {"top_k": 9}, {"temperature": 0}, {"temperature": 0.6}],
}


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_tokens_and_log_probabilities_are_those_of_sampling_one_by_one(ways):
    made = []

    def make_forward(network, store):
        made.append(Compared(network, store))
        return made[-1]

    loop = Loop(network(), EngineSection(kv_tokens=32_768), model="m", make_forward=make_forward)
    for _ in range(2):
        _play(loop, ways)
        # Graphs are forgotten, and captured again without trying their kernels first.
        loop.rest()
        loop.wake()

    found, expected = torch.cat(made[0].found), torch.cat(made[0].expected)
    assert 2 * sum(range(10, 110, 10)) == len(found)
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(found[:, 1], expected[:, 1], rtol=1e-5, atol=1e-5)


def _play(loop, ways):
    """Ten calls that end one after the other."""
    for number in range(10):
        ids = array("i", range(number, number + 100 + number))
        way = ways[number % len(ways)]
        sampling = Sampling(max_tokens=10 * (number + 1), seed=number, **way)
        name = str(number)
        loop.submit(Ask(id=name, input_ids=ids.tobytes(), sampling=sampling, execution=name))
    while loop.has_calls:
        loop.step()
