"""A call through the whole application in one process, with a disk that refuses."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from gyre.config.sections import LimitsConfig, ProxyConfig, RouterConfig
from gyre.proxy.admin_api import AdminApi
from gyre.proxy.call_handler import CallContext
from gyre.proxy.executions import ExecutionRegistry
from gyre.proxy.metrics import ProxyMetrics
from gyre.proxy.routing.router import Router
from gyre.proxy.server import Proxy
from gyre.storage.call_log import CallLog, logs, read
from gyre.storage.wal import WalWriter, WriteAheadLog
from gyre.testing.renderer import ByteRenderer, reply_ids
from gyre.types.call_records import CallClosed, CallDelivered
from gyre.types.errors import EngineError
from gyre.types.ids import EngineName
from gyre.types.sampling import Chunk, EngineHealth, SamplingParams


class Greeter:
    """An engine that always says the same."""

    name = EngineName("greeter")

    async def generate(self, ask):
        ids = reply_ids("hello")
        yield Chunk(ids=ids, logprobs=[-0.5] * len(ids), version=1, finish="stop")

    async def health(self):
        return EngineHealth(ready=True)

    async def close(self):
        return None


class Balky(WriteAheadLog):
    """A journal whose disk is full for its first writes."""

    refusals = 0

    def write(self, entries):
        if self.refusals:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        super().write(entries)


async def post(app, path, key, body):
    """One request straight into the application; status and body."""
    data = json.dumps(body).encode()
    events = [{"type": "http.request", "body": data, "more_body": False}]
    never = asyncio.Event()
    sent = []

    async def receive():
        if events:
            return events.pop()
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"authorization", f"Bearer {key}".encode())],
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one["body"] for one in sent[1:])


@asynccontextmanager
async def application(folder, journal, engine=None):
    """The application, one execution of it, and that one's key."""
    commit = WalWriter(journal)
    limits, settings = LimitsConfig(), ProxyConfig()
    executions = ExecutionRegistry(
        folder,
        ByteRenderer(),
        model="m",
        sampling=SamplingParams(),
        settings=settings,
        limits=limits,
        commit=commit,
    )
    async with Router([engine or Greeter()], RouterConfig()) as router:
        context = CallContext(router=router, commit=commit, metrics=ProxyMetrics(), ping_s=10)
        app = Proxy(
            executions, context, AdminApi(executions, router, "token"), model="m", limits=limits
        )
        yield app, *executions.create("x")
    executions.close()
    commit.close()


@pytest.mark.parametrize("choices", [1, 3])
def test_a_disk_that_refuses_is_told_and_nothing_is_recorded_twice(tmp_path, choices):
    """FAULTS 31: the call is refused as retryable; its record stands once and uncommitted."""
    journal = Balky(tmp_path)
    journal.refusals = 1

    async def run():
        async with application(tmp_path, journal) as (app, execution, key):
            body = {"model": "m", "n": choices, "messages": [{"role": "user", "content": "hi"}]}
            first = await post(app, "/v1/chat/completions", key, body)
            second = await post(app, "/v1/chat/completions", key, body)
        return first, second, execution.session.tree

    first, second, tree = asyncio.run(run())
    assert 503 == first[0]
    assert "No space left" in json.loads(first[1])["error"]["message"]
    assert 200 == second[0]
    assert 2 * choices == len(tree.calls)
    assert choices == sum(node.committed is not None for node in tree.calls.values())
    kinds = [type(record).__name__ for record in read(next(logs(tmp_path))).records]
    assert 2 * choices == kinds.count("CallClosed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", ["full disk", "closed execution"])
def test_an_answer_that_is_out_stands_although_its_delivery_cannot_be_noted(
    tmp_path, monkeypatch, stream, refusal
):
    """FAULTS 31: nothing follows a whole answer, and the next request tells that it arrived."""

    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, execution, key):
            messages = [{"role": "user", "content": "hi"}]
            append = CallLog.append

            def refusing(log, *records):
                if any(isinstance(one, CallDelivered) for one in records):
                    raise OSError(28, "No space left on device")
                return append(log, *records)

            def sealing(log, *records):
                execution.sealed = any(isinstance(one, CallClosed) for one in records)
                return append(log, *records)

            appending = refusing if refusal == "full disk" else sealing
            path = "/v1/chat/completions"
            body = {"model": "m", "messages": messages, "stream": stream}
            with monkeypatch.context() as patched:
                patched.setattr(CallLog, "append", appending)
                first = await post(app, path, key, body)
            uncommitted = [one.committed for one in execution.session.tree.calls.values()]
            execution.sealed = False
            messages += [
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "?"},
            ]
            second = await post(app, path, key, body | {"messages": messages})
        return first, uncommitted, second, execution.session.tree

    first, uncommitted, second, tree = asyncio.run(run())
    assert 200 == first[0]
    assert b"error" not in first[1]
    assert [None] == uncommitted
    assert 200 == second[0]
    assert all(one.committed is not None for one in tree.calls.values())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_left", [False, True], ids=["taken", "left"])
def test_a_reply_is_delivered_when_the_socket_has_taken_all_of_it(tmp_path, stream, is_left):
    """SPEC 4.5: a server that has taken a write still holds its bytes until the next is let in."""

    async def run():
        async with application(tmp_path, WriteAheadLog(tmp_path)) as (app, execution, key):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            drained, full, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
            events = [{"type": "http.request", "body": json.dumps(body).encode()}]
            held = []

            async def receive():
                if events:
                    return events.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                if held:
                    full.set()
                    await drained.wait()
                if b"hello" in message.get("body", b""):
                    held.append(message)

            head = [(b"authorization", f"Bearer {key}".encode())]
            path = "/v1/chat/completions"
            scope = {"type": "http", "method": "POST", "path": path, "headers": head}
            answered = asyncio.create_task(app(scope, receive, send))
            waiting = asyncio.create_task(full.wait())
            await asyncio.wait({answered, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            (call,) = execution.session.tree.calls.values()
            before = call.committed
            if is_left:
                gone.set()
                await asyncio.sleep(0)
            drained.set()
            await answered
            return before, call.committed

    before, after = asyncio.run(run())
    assert before is None
    assert is_left == (after is None)


class Broken(Greeter):
    """An engine that refuses what it is asked for, for good."""

    async def generate(self, ask):
        raise EngineError("engine: \x1b[31mno", retryable=False)
        yield


@pytest.mark.parametrize("choices", [1, 3])
def test_an_engine_that_refuses_is_told_in_the_dialects_own_shape(tmp_path, choices):
    """SPEC 4.6: also when several choices are refused at once."""

    async def run():
        journal = WriteAheadLog(tmp_path)
        async with application(tmp_path, journal, Broken()) as (app, execution, key):
            body = {"model": "m", "n": choices, "messages": [{"role": "user", "content": "hi"}]}
            found = await post(app, "/v1/chat/completions", key, body)
            return found, execution.in_flight, list(execution.session.tree.unfinished)

    (status, said), in_flight, unfinished = asyncio.run(run())
    assert 503 == status
    assert "the engine failed: engine: \\x1b[31mno" == json.loads(said)["error"]["message"]
    assert (0, []) == (in_flight, unfinished)
