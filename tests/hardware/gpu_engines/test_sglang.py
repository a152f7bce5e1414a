"""What SGLang promises as a cell's engine on a GPU: both contracts, asked of the live server."""

import pytest
import torch
from tests.contracts import controllable_engine as steered_suite
from tests.contracts import engine as engine_suite
from tests.hardware.gpu_engines.planted import write_weights
from tests.hardware.gpu_engines.server import AsEngine, AsSteered, GpuServer

pytestmark = [pytest.mark.engines, pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    place = tmp_path_factory.mktemp("weights")
    write_weights(place)
    return place


@pytest.fixture(scope="module")
def server(request, weights):
    started = GpuServer("sglang", request.config.getoption("--sglang"), weights)
    yield started
    started.close()


@pytest.mark.parametrize("promise", engine_suite.EVERY_ENGINE, ids=lambda one: one.__name__)
def test_it_keeps_the_promise_of_an_engine_that(promise, server):
    server.run(promise(AsEngine(server)))


@pytest.mark.parametrize("how", ["disk", "memory"])
@pytest.mark.parametrize("promise", steered_suite.LOADS, ids=lambda one: one.__name__)
def test_it_takes_weights_so_that(promise, server, how):
    server.run(promise(AsSteered(server, how)))


@pytest.mark.parametrize("promise", steered_suite.OTHERS, ids=lambda one: one.__name__)
def test_it_keeps_the_promise_under_orders_that(promise, server):
    server.run(promise(AsSteered(server, "memory")))


def test_it_refuses_weights_that_are_not_what_they_say(server, tmp_path):
    subject = AsSteered(server, "disk")
    server.run(steered_suite.weights_that_are_not_what_they_say_are_refused(subject, tmp_path))


def test_at_rest_it_gives_its_memory_back(server, record_property):
    free = {"serving": free_bytes()}
    server.run(server.engine.offload())
    free["resting"] = free_bytes()
    server.run(server.engine.wake())
    free["awake"] = free_bytes()
    record_property("free_gib", {when: round(num / 2**30, 2) for when, num in free.items()})
    cache = server.wanted.engine.kv_tokens * server.wanted.kv_token_bytes

    assert free["resting"] - free["serving"] > 0.9 * cache
    assert free["resting"] - free["awake"] > 0.9 * cache


def free_bytes():
    return torch.cuda.mem_get_info()[0]
