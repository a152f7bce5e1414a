"""What vLLM and SGLang promise as engines of a cell: both contracts, asked of the live servers."""

import pytest
from real import cells
from tests.contracts import controllable_engine as steered_suite
from tests.contracts import engine as engine_suite

from gyre.types.errors import EngineError

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    place = tmp_path_factory.mktemp("weights")
    cells.write_weights(place)
    return place


@pytest.fixture(scope="module", params=["vllm", "sglang", "sglang-0.5.18"])
def server(request, weights):
    started = cells.CellServer(request.param, weights)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _of_engine(server, record_property):
    record_property("engine", server.release)


@pytest.mark.parametrize("promise", engine_suite.EVERY_ENGINE, ids=lambda one: one.__name__)
def test_a_cells_server_keeps_the_promise_of_an_engine_that(promise, server):
    server.run(promise(cells.AsEngine(server)))


@pytest.mark.parametrize("how", ["disk", "memory"])
@pytest.mark.parametrize("promise", steered_suite.LOADS, ids=lambda one: one.__name__)
def test_a_cells_server_takes_weights_so_that(promise, server, how):
    server.run(promise(cells.AsSteered(server, how)))


@pytest.mark.parametrize("promise", steered_suite.OTHERS, ids=lambda one: one.__name__)
def test_a_cells_server_keeps_the_promise_under_orders_that(promise, server):
    server.run(promise(cells.AsSteered(server, "memory")))


def test_a_cells_server_refuses_weights_that_are_not_what_they_say(server, tmp_path):
    subject = cells.AsSteered(server, "disk")
    server.run(steered_suite.weights_that_are_not_what_they_say_are_refused(subject, tmp_path))


def test_a_cells_server_gives_no_cached_blocks_away(server):
    with pytest.raises(EngineError, match="compute again") as refused:
        server.run(server.engine.pin([1, 2, 3]))

    assert not refused.value.retryable


def test_a_server_that_dies_is_said_to_be_not_ready_and_its_calls_fail(server):
    """The last of its module, because nothing of the server is left."""
    server.run(dies(server))


async def dies(server):
    subject = cells.AsSteered(server, "disk")
    said = steered_suite.Said(subject.ask(max_tokens=subject.long_tokens))

    async def read():
        async for chunk in server.engine.generate(said.ask):
            said.take(chunk)
            if len(said.ids) == len(chunk.ids):
                server.kill()

    with pytest.raises(EngineError) as failed:
        await read()
    health = await server.engine.health()

    assert failed.value.retryable
    assert said.finish is None
    assert said.ids
    assert (False, "its server has ended") == (health.ready, health.detail)
    with pytest.raises(EngineError, match="has ended"):
        await server.engine.load(subject.folder("first"), version=9)
