"""Executions of a run folder, as the proxy's controls open and close them."""

import asyncio
import errno
import json
import os
from contextlib import contextmanager

import pytest
from tests.module_patches import Overridden
from tests.security.inside import BEARER, inside

from gyre.config.sections import LimitsConfig, ProxyConfig
from gyre.proxy.dialects.openai_chat import OpenAIChat
from gyre.proxy.executions import ExecutionRegistry
from gyre.storage import files, framed_file, wal
from gyre.storage.call_log import CallLog, logs, path_of
from gyre.storage.call_log import read as read_log
from gyre.storage.wal import WalWriter, WriteAheadLog
from gyre.testing.renderer import ByteRenderer, reply_ids
from gyre.types.call_records import CallFailed, CallOpened, Classification, LogOpened, LogSealed
from gyre.types.ids import CallId, ExecutionId
from gyre.types.sampling import Output, SamplingParams


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync"])
def test_an_execution_that_a_full_disk_refused_is_opened_when_there_is_room(
    call, tmp_path, monkeypatch
):
    """FAULTS 31: nothing half made is left that would look like an execution without a key."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario():
        async with inside(tmp_path) as listeners:
            with monkeypatch.context() as patched:
                for module in (files, framed_file, wal):
                    patched.setattr(module, "os", Overridden(os, **{call: full}))
                refused = await listeners.proxy.send("PUT", "/gyre/executions/x", headers=[BEARER])
            left = list(logs(tmp_path))
            opened = await listeners.proxy.send("PUT", "/gyre/executions/x", headers=[BEARER])
            again = await listeners.proxy.send("PUT", "/gyre/executions/x", headers=[BEARER])
        return refused.status, left, opened.json["key"], again.json["key"]

    status, left, key, again = asyncio.run(scenario())

    assert (529, []) == (status, left)
    assert key.startswith("gyre-")
    assert None is again


def test_an_execution_that_a_full_disk_kept_from_being_read_is_read_again(tmp_path, monkeypatch):
    """M21: a call that was open when a proxy was killed is ended as soon as there is room."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scenario():
        async with inside(tmp_path) as listeners:
            await listeners.proxy.send("PUT", "/gyre/executions/x", headers=[BEARER])
            await listeners.proxy.post("/gyre/executions/x/close", headers=[BEARER])
        (tmp_path / "share").rmdir()
        path = path_of(tmp_path, "x")
        opened = read_log(path).records[0]
        path.unlink()
        log = CallLog(path)
        call = CallOpened(call=CallId(1), at=1.0, dialect="chat", num_messages=1, prompt_tokens=1)
        for record in (opened, call):
            log.append(record)
        log.close()
        async with inside(tmp_path) as listeners:
            with monkeypatch.context() as patched:
                patched.setattr(framed_file, "os", Overridden(os, pwrite=full))
                refused = await listeners.proxy.post("/gyre/executions/x/close", headers=[BEARER])
            closed = await listeners.proxy.post("/gyre/executions/x/close", headers=[BEARER])
        return refused.status, closed.status, [type(one) for one in read_log(path).records]

    refused, closed, kinds = asyncio.run(scenario())

    assert (529, 200) == (refused, closed)
    assert [LogOpened, CallOpened, CallFailed, LogSealed] == kinds


def test_closing_again_says_the_same(tmp_path):
    """Whoever missed the first answer asks again, of this proxy or of the next."""

    async def closed(listeners):
        answer = await listeners.proxy.post("/gyre/executions/x/close", headers=[BEARER])
        return answer.status, answer.json["committed"]

    async def scenario():
        async with inside(tmp_path) as listeners:
            await listeners.proxy.send("PUT", "/gyre/executions/x", headers=[BEARER])
            found = [await closed(listeners), await closed(listeners)]
        (tmp_path / "share").rmdir()
        async with inside(tmp_path) as listeners:
            return [*found, await closed(listeners)]

    assert [(200, 0)] * 3 == asyncio.run(scenario())


@contextmanager
def registry(folder, **settings):
    commit = WalWriter(WriteAheadLog(folder))
    found = ExecutionRegistry(
        folder,
        ByteRenderer(),
        model="m",
        sampling=SamplingParams(),
        settings=ProxyConfig(**settings),
        limits=LimitsConfig(),
        commit=commit,
    )
    try:
        yield found
    finally:
        found.close()
        commit.close()


def called(execution, messages, said):
    """A whole call: what its engine was sent as text, and why it forks."""
    dialect = OpenAIChat()
    body = json.dumps({"model": "m", "messages": messages}).encode()
    classified = Classification(role="main", harness="test")
    pending = execution.session.position(dialect, dialect.split(body), classified)
    opened = execution.session.open_call(pending, 1.0)
    execution.write(*pending.place.echoed, opened)
    output = Output(ids=reply_ids(said), logprobs=None, spans=(), finish="stop")
    record, _ = execution.session.close_call(pending, opened, output, 2.0)
    execution.write(record)
    return bytes(token for token in pending.prompt.ids if token < 256).decode(), record.fork


def test_an_execution_keeps_the_placeholder_that_it_began_with(tmp_path):
    """Its tokens hold it, so that a history goes on matching after a resume with another one."""
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    then = [picture, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
    with registry(tmp_path, media_placeholder="<no {kind}>") as executions:
        first, _ = called(executions.create("x")[0], [picture], "a")
    with registry(tmp_path, media_placeholder="<none>") as executions:
        second, fork = called(executions.get(ExecutionId("x")), then, "b")
        other, _ = called(executions.create("y")[0], [picture], "a")

    assert "<no image>" in first
    assert (True, None) == (second.startswith(first), fork)
    assert "<none>" in other
