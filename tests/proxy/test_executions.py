"""Executions of a run folder, as the proxy's controls open and close them."""

import asyncio
import errno
import os

import pytest
from tests.module_patches import Overridden
from tests.security.inside import BEARER, inside

from gyre.storage import files, framed_file, wal
from gyre.storage.call_log import CallLog, logs, path_of
from gyre.storage.call_log import read as read_log
from gyre.types.call_records import CallFailed, CallOpened, LogOpened, LogSealed
from gyre.types.ids import CallId


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
