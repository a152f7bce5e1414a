"""Replies that wait, are pinged, are cut, or have nobody left to go to."""

import asyncio
import contextlib
import http.client
import json
import socket

from tests.flows.steering import steer
from tests.waiting import PATIENCE_S, wait_until

from gyre.storage.call_log import logs, read
from gyre.trajectory.tree import grow


def request(proxy, execution, *, stream, path="/v1/messages"):
    """The bytes of one request with its headers."""
    body = {
        "model": "m",
        "max_tokens": 200_000,
        "stream": stream,
        "messages": [{"role": "user", "content": "begin"}],
    }
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: proxy\r\nauthorization: Bearer {execution.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def tree_of(stage):
    return grow(read(next(logs(stage.folder / "run"))).records)


def test_a_waiting_stream_is_pinged_and_then_gets_its_whole_reply(stage):
    """SPEC 4.6: pings while the reply is generated, then everything at once."""
    engine = stage.engine()
    proxy = stage.proxy(engine, options=("--ping", "0.2"))
    execution = proxy.open("x")
    # Its reply takes until there were pings, however slow the proxy is.
    engine.freeze()

    async def talk():
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request(proxy, execution, stream=True))
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"message_stop" not in data:
                assert not reader.at_eof(), data
                data += await reader.read(65536)
                if data.count(b"event: ping") >= 2:
                    engine.thaw()
        writer.close()
        return data

    data = asyncio.run(talk())
    begun = data.index(b"message_start")
    assert 2 <= data[:begun].count(b"event: ping")
    assert b"event: ping" not in data[begun:]


def test_a_client_that_leaves_while_waiting_leaves_an_uncommitted_record(stage):
    """T08, FAULTS 9: the engine call is aborted, what was sampled is kept, the slot is free."""
    engine = stage.engine(chunk_tokens=4)
    proxy = stage.proxy(engine, options=("--ping", "0.1"))
    execution = proxy.open("x")
    steer(engine, "fault", {"kind": "stall", "after": 8})
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)
    client.sendall(request(proxy, execution, stream=True))
    assert client.recv(1024).startswith(b"HTTP/1.1 200")
    steer(engine, "stalled", 1)
    # What the engine has sent lies before the proxy, which has read it before it pings again.
    data = b""
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.recv(65536)
    client.settimeout(PATIENCE_S)
    while data.count(b"event: ping") < 2:
        data += client.recv(1024)
    client.close()

    wait_until(lambda: 0 == proxy.metrics()["gyre_calls_in_flight"])
    (node,) = tree_of(stage).calls.values()
    assert "abort" == node.finish
    assert node.committed is None
    assert 0 < node.num_output
    assert 1 == proxy.metrics()["gyre_undelivered_total"]


def test_a_client_that_leaves_before_any_token_is_recorded_as_failed(stage):
    engine = stage.engine()
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    engine.freeze()
    client = socket.create_connection(("127.0.0.1", proxy.port))
    client.sendall(request(proxy, execution, stream=False))
    wait_until(lambda: 1 == proxy.metrics()["gyre_calls_in_flight"])
    client.close()

    wait_until(lambda: 0 == proxy.metrics()["gyre_calls_in_flight"])
    tree = tree_of(stage)
    engine.thaw()
    assert {} == tree.calls
    assert [1] == list(tree.failed)
    assert tree.is_complete


def test_a_reply_that_was_not_read_to_its_end_is_not_committed(stage):
    """T30: the client hangs up in the middle of a large stream; the record stays whole."""
    proxy = stage.proxy(stage.engine("long", chunk_tokens=100_000), options=(
        "--max-tokens", "300000", "--context", "400000",
    ))  # fmt: skip
    execution = proxy.open("x")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", proxy.port))
    client.sendall(request(proxy, execution, stream=True))
    seen = b""
    while b"content_block_delta" not in seen:
        seen += client.recv(4096)
    client.close()

    wait_until(lambda: 0 == proxy.metrics()["gyre_calls_in_flight"])
    (node,) = tree_of(stage).calls.values()
    assert ("stop", None) == (node.finish, node.committed)
    assert 1 == proxy.metrics()["gyre_undelivered_total"]


def test_a_call_in_flight_ends_when_its_execution_is_closed(stage):
    """M15, FAULTS 13: its calls in flight are refused and nothing is committed."""
    # So slow that it is still at it when the execution is closed.
    engine = stage.engine(chunk_delay_s=1.0)
    proxy = stage.proxy(engine)
    execution = proxy.open("x")
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)
    client.sendall(request(proxy, execution, stream=False))
    wait_until(lambda: 1 == proxy.metrics()["gyre_engine_in_flight" + of(engine)])
    proxy.close("x")

    assert client.recv(4096).startswith(b"HTTP/1.1 401")
    client.close()
    wait_until(lambda: 0 == proxy.metrics()["gyre_engine_in_flight" + of(engine)])
    tree = tree_of(stage)
    assert {} == tree.calls
    assert not tree.is_complete
    assert tree.sealed_at is not None


def of(engine):
    return f'{{engine="127.0.0.1:{engine.port}"}}'


def test_probes_and_token_counts_leave_no_node(stage):
    """M25, SPEC 5: logged in the metrics, not in the tree."""
    proxy = stage.proxy(stage.engine())
    execution = proxy.open("x")

    def ask(path, body):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE_S)
        connection.request("POST", path, json.dumps(body), {"x-api-key": execution.key})
        answer = connection.getresponse()
        found = answer.status, json.load(answer)
        connection.close()
        return found

    messages = [{"role": "user", "content": "quota"}]
    probe = ask("/v1/messages", {"model": "m", "max_tokens": 1, "messages": messages})
    count = ask("/v1/messages/count_tokens", {"model": "m", "messages": messages})

    assert 200 == probe[0]
    assert 1 == probe[1]["usage"]["output_tokens"]
    assert (200, ["input_tokens"]) == (count[0], list(count[1]))
    assert 1 == len(read(next(logs(stage.folder / "run"))).records)
    assert (1, 1) == (
        proxy.metrics()["gyre_probes_total"],
        proxy.metrics()["gyre_token_counts_total"],
    )


def test_a_hung_engine_is_left_for_another(stage):
    """FAULTS 3: it accepts and never answers; the call goes on elsewhere."""
    engines = [stage.engine(), stage.engine()]
    proxy = stage.proxy(*engines, options=("--idle", "0.5"))
    execution = proxy.open("x")
    engines[0].freeze()

    async def talk():
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(request(proxy, execution, stream=False))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(talk())
    engines[0].thaw()
    assert 3 == len(tree_of(stage).calls)
