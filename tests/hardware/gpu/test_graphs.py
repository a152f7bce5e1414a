"""What a captured graph samples is what is sampled without one, whatever the number of calls."""

from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tests.hardware.gpu.test_cell import network

from gyre.config.sections import EngineConfig
from gyre.inference.engine.cuda_graphs import FailureBackoff, GraphForward
from gyre.inference.engine.engine import EngineCore
from gyre.inference.engine.request import RequestOutput
from gyre.inference.engine.sampler import sample_packed
from gyre.types.errors import ConfigError
from gyre.types.sampling import GenerateRequest, SamplingParams

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

    loop = EngineCore(
        network(), EngineConfig(kv_tokens=32_768), model="m", make_forward=make_forward
    )
    for _ in range(2):
        _play(loop, ways)
        # Graphs are forgotten, and captured again without trying their kernels first.
        loop.offload()
        loop.wake()

    found, expected = torch.cat(made[0].found), torch.cat(made[0].expected)
    assert 2 * sum(range(10, 110, 10)) == len(found)
    torch.testing.assert_close(found[:, 0], expected[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(found[:, 1], expected[:, 1], rtol=1e-5, atol=1e-5)


class Failing(Compared):
    """Some captures fail midway, and are soon tried again."""

    def __init__(self, network, store):
        super().__init__(network, store)
        self.num_to_fail = 3
        self.failed, self.made = [], []
        self._put_off = FailureBackoff(4)

    def _captured(self, what, work):
        if not self.num_to_fail:
            self.made.append(what)
            return super()._captured(what, work)
        self.num_to_fail -= 1
        self.failed.append(what)
        for _ in range(2):
            work()
        self._met.add(what)

        def failing():
            work()
            raise torch.OutOfMemoryError("no room for a graph")

        return super()._captured(what, failing)


def test_a_capture_that_fails_costs_no_call_and_is_tried_again():
    made = []

    def make_forward(network, store):
        made.append(Failing(network, store))
        return made[-1]

    loop = EngineCore(
        network(), EngineConfig(kv_tokens=32_768), model="m", make_forward=make_forward
    )
    _play(loop, WAYS["greedy"])
    (forward,) = made

    found, expected = torch.cat(forward.found), torch.cat(forward.expected)
    assert sum(range(10, 110, 10)) == len(found)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert set(forward.failed) <= set(forward.made)


def heard(loop, asks):
    """Ids and log-probabilities of each call, once graphs are there; the device is behind."""
    loop.submit(replace(asks[0], id="first", input_ids=asks[0].input_ids[:40]))
    while loop.has_calls:
        loop.step()
    found = {one.id: [] for one in asks}
    for one in asks:
        loop.submit(one)
    torch.cuda._sleep(1_000_000_000)
    while loop.has_calls:
        for report in loop.step():
            assert isinstance(report, RequestOutput)
            found[report.id] += zip(report.chunk.ids, report.chunk.logprobs, strict=True)
    return found


def asks(num_prompt, **sampling):
    rows = torch.arange(num_prompt, dtype=torch.int32)
    return [
        GenerateRequest(
            id=str(number),
            input_ids=((rows * (7 + number)) % 2048).numpy().tobytes(),
            sampling=SamplingParams(max_tokens=20, seed=number, **sampling),
            execution=str(number),
        )
        for number in range(3)
    ]


def test_passes_that_sample_nothing_do_not_overtake_what_they_read():
    """One token of a prompt at a time: hundreds of passes are launched before the first is made."""

    class Settled(GraphForward):
        def __call__(self, work, ids=None):
            logits = super().__call__(work, ids)
            torch.cuda.synchronize()
            return logits

    section = EngineConfig(kv_tokens=32_768, prefill_tokens=1)
    expected, found = (
        heard(
            EngineCore(
                network(),
                section,
                model="m",
                make_forward=lambda *of, kind=kind: kind(*of, graphs=True),
            ),
            asks(300),
        )
        for kind in (Settled, GraphForward)
    )

    assert expected == found


@pytest.mark.parametrize("number", sorted({0, max(0, torch.cuda.device_count() - 1)}))
def test_an_engine_serves_from_any_device_whatever_is_current_in_its_thread(number):
    """Threads begin with device 0."""
    device = torch.device("cuda", number)

    def play():
        loop = EngineCore(network(device), EngineConfig(kv_tokens=32_768), model="m")
        return heard(loop, asks(300, temperature=0.6))

    def there():
        with torch.cuda.device(device):
            return play()

    with ThreadPoolExecutor(1) as elsewhere, ThreadPoolExecutor(1) as thread:
        assert elsewhere.submit(there).result() == thread.submit(play).result()


def test_kernels_that_cannot_run_are_told_of_before_any_call_is(monkeypatch):
    def try_out(shape, dtype, device):
        raise RuntimeError("a kernel cannot run: OutOfResources")

    monkeypatch.setattr("gyre.inference.engine.model_runner.try_out", try_out)

    with pytest.raises(ConfigError, match=r"kernels cannot run on cuda:0: .*OutOfResources"):
        EngineCore(network(), EngineConfig(kv_tokens=4096), model="m")


def _play(loop, ways):
    """Ten calls that end one after the other."""
    for number in range(10):
        ids = array("i", range(number, number + 100 + number))
        way = ways[number % len(ways)]
        sampling = SamplingParams(max_tokens=10 * (number + 1), seed=number, **way)
        name = str(number)
        loop.submit(
            GenerateRequest(id=name, input_ids=ids.tobytes(), sampling=sampling, execution=name)
        )
    while loop.has_calls:
        loop.step()
