"""The router over engines that are real processes: killed, frozen, restarted under load."""

import asyncio
import random
import time
from array import array
from contextlib import ExitStack, asynccontextmanager

import pytest
from tests.flows.steering import steer
from tests.waiting import PATIENCE_S, patience, until

from gyre.config.sections import RouterConfig
from gyre.inference.clients.http import client
from gyre.inference.clients.registry import connect, read_address
from gyre.proxy.routing.router import Router
from gyre.testing.processes import EngineProcess
from gyre.testing.script import (
    Conversation,
    FastCoder,
    Script,
    ScriptedModel,
    ScriptedReply,
    logprobs,
)
from gyre.testing.tokenizer import tokenizer, write_tokenizer
from gyre.types.sampling import SamplingParams

pytestmark = pytest.mark.slow

CALLS = 300
IDLE_S = patience(1.0)


def script() -> Script:
    """Each task has a reply of its own, some short and some long."""

    def rule(conversation: Conversation) -> ScriptedReply:
        task = conversation.turns[0].text
        length = 8 + 7 * (sum(task.encode()) % 11)
        return ScriptedReply(text=" ".join(f"{task} {number}" for number in range(length)))

    return Script([rule])


CODER = FastCoder(tokenizer())
MODEL = ScriptedModel(script(), CODER)
SAMPLING = SamplingParams(max_tokens=4000, stop_ids=(CODER.encode("<|im_end|>")[0],))


def prompt(number: int) -> bytes:
    text = f"<|im_start|>user\ntask {number}<|im_end|>\n<|im_start|>assistant\n"
    return array("i", CODER.encode(text)).tobytes()


@pytest.fixture
def start(tmp_path):
    """Starts engine processes, which end with the test."""
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    with ExitStack() as stack:

        def one(name, wire, **options):
            process = EngineProcess(
                wire,
                script=f"{__file__}:script",
                tokenizer=path,
                log=tmp_path / f"{name}.jsonl",
                chunk_tokens=16,
                **options,
            )
            return stack.enter_context(process)

        yield one


@asynccontextmanager
async def routing(*processes, **settings):
    """A router over the processes, with back-offs fit for a test."""
    section = RouterConfig(retry_first_s=0.005, retry_most_s=0.1, probe_s=0.05, **settings)
    async with asyncio.timeout(PATIENCE_S), client() as session:
        engines = [await connect(read_address(one.address), session) for one in processes]
        async with Router(engines, section, jitter=random.Random(3)) as router:
            yield router
        for engine in engines:
            await engine.close()


class Load:
    """Calls in flight at once, and a mark to act on when so many are done."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._done = 0
        self._marks: dict[int, asyncio.Event] = {}

    async def wait_done(self, count: int) -> None:
        await self._marks.setdefault(count, asyncio.Event()).wait()

    async def call(self, number: int):
        accepted = await self._router.accept(f"execution {number % 40}")
        output = await self._router.generate(accepted, input_ids=prompt(number), sampling=SAMPLING)
        self._done += 1
        if self._done in self._marks:
            self._marks[self._done].set()
        return output


def assert_exact(outputs):
    for number, output in enumerate(outputs):
        plan = MODEL.plan(prompt(number), SAMPLING.max_tokens)
        assert (plan.ids, "stop") == (output.ids, output.finish)
        assert logprobs(prompt(number), plan.ids) == output.logprobs
        assert array("i", prompt(number)).tolist() == output.echo


@pytest.mark.parametrize(
    "wires",
    [
        [{"wire": "sglang"}, {"wire": "sglang"}],
        [{"wire": "vllm"}, {"wire": "sglang", "incremental": True}],
    ],
    ids=["sglang", "vllm and incremental sglang"],
)
def test_an_engine_killed_under_load_costs_no_call_and_no_token(start, wires):
    """T07: FAULTS 1, 2; three hundred calls, each exact, although one of two engines dies."""
    a, b = (start(str(n), chunk_delay_s=0.02, **one) for n, one in enumerate(wires))
    # Its first reply stops in the middle, and so there is one when it dies.
    steer(a, "faults", [{"kind": "stall", "after": 16}])

    async def scenario():
        async with routing(a, b, capacity=32) as router:
            load = Load(router)

            async def kill():
                await load.wait_done(60)
                await asyncio.to_thread(steer, a, "stalled", 1)
                a.kill()

            *outputs, _ = await asyncio.gather(
                *(load.call(number) for number in range(CALLS)), kill()
            )
            return outputs, router.counts, router.engines()

    outputs, counts, engines = asyncio.run(scenario())

    assert_exact(outputs)
    assert counts.reroutes > 0
    moved = [output for output in outputs if len({span.engine for span in output.spans}) == 2]
    assert moved, "no call had tokens from both engines, so nothing was proved"
    assert "broken" == engines[0].state
    replies = {
        number: prompt(number) + array("i", output.ids).tobytes()
        for number, output in enumerate(outputs)
    }
    for ask in a.asks() + b.asks():
        sent = array("i", ask.input_ids).tobytes()
        assert any(reply.startswith(sent) for reply in replies.values())
    assert counts.attempts < 2 * CALLS


def test_a_frozen_engine_is_noticed_left_and_taken_back(start):
    """FAULTS 3: calls go on elsewhere one and a half idle limits after the last token."""
    a, b = (start(name, "sglang", chunk_delay_s=0.002) for name in "ab")

    async def scenario():
        async with routing(a, b, capacity=20, idle_s=IDLE_S) as router:
            load = Load(router)
            frozen_at = []

            async def freeze():
                await load.wait_done(10)
                a.freeze()
                frozen_at.append(time.monotonic())
                # More than the other has room for: some are given to the one that is frozen.
                return await asyncio.gather(*(load.call(n) for n in range(60, 100)))

            *outputs, later = await asyncio.gather(*(load.call(n) for n in range(60)), freeze())
            outputs += later
            took_s = time.monotonic() - frozen_at[0]
            broken = router.engines()[0].state
            a.thaw()
            # With the other engine gone, calls wait until a probe has succeeded.
            await router.drain(router.engines()[1].name)
            outputs += await asyncio.gather(*(load.call(n) for n in range(100, 140)))
            # Where the machine is slow it may have seemed frozen again meanwhile.
            await until(lambda: router.engines()[0].state == "ready", "it is taken back")
            return outputs, took_s, broken

    outputs, took_s, broken = asyncio.run(scenario())

    assert_exact(outputs)
    assert "broken" == broken
    assert IDLE_S < took_s


def test_an_engine_that_comes_back_gets_calls_again(start):
    a = start("a", "vllm")

    async def scenario():
        async with routing(a) as router:
            load = Load(router)
            first = await load.call(0)
            a.kill()
            waiting = asyncio.gather(*(load.call(number) for number in range(1, 30)))
            await asyncio.to_thread(start, "again", "vllm", port=a.port)
            outputs = [first, *await waiting]
            # Where the machine is slow it may have seemed silent at last.
            await until(lambda: router.engines()[0].state == "ready", "it is ready")
            return outputs, router.counts

    outputs, counts = asyncio.run(scenario())

    assert_exact(outputs)
    assert counts.breaker_opens >= 1
