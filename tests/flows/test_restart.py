"""A proxy that is killed in the middle of calls and started again."""

import asyncio
import json
import urllib.error
import urllib.request

import aiohttp
import pytest
from tests.waiting import PATIENCE_S, wait_until

from gyre.storage.call_log import logs, read
from gyre.trajectory.tree import grow

TURNS = 12


async def agent(session, execution, progress):
    """A harness that retries like real ones: on a broken connection it sends the same again."""
    history = [{"role": "user", "content": f"task of {execution.id}"}]
    headers = {"authorization": f"Bearer {execution.key}"}
    for _ in range(TURNS):
        body = {"model": "policy", "messages": history, "stream": False}
        while True:
            try:
                url = f"{execution.url}/v1/chat/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    message = (await answer.json())["choices"][0]["message"]
                    break
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
        call = message["tool_calls"][0]
        history += [message, {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
        progress.release()


def committed(folder):
    """What was committed, free of ids that differ from run to run."""
    found = {}
    for path in logs(folder):
        tree = grow(read(path).records)
        found[path.stem] = {
            (tree.prompt_ids(node.id).tobytes(), tree.output_ids(node.id).tobytes(), node.role)
            for leaf in tree.leaves()
            for node in tree.ancestry(leaf.id)
        }
    return found


def run(stage, name, *, kills):
    """Ten agents through one proxy that is killed so many times; the committed calls."""
    engine = stage.engine(chunk_delay_s=0.01, chunk_tokens=16)
    stage.folder = stage.folder / name
    proxy = stage.proxy(engine)

    async def drive():
        progress = asyncio.Semaphore(0)
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for number in range(10):
                execution = await asyncio.to_thread(proxy.open, f"x{number}")
                group.create_task(agent(session, execution, progress))
            for _ in range(kills):
                for _ in range(25):
                    await progress.acquire()
                await asyncio.to_thread(proxy.kill)
                await asyncio.to_thread(proxy.restart)

    asyncio.run(drive())
    assert 0 == proxy.stop()
    return committed(stage.folder / "run")


def test_agents_go_on_after_the_proxy_is_killed_and_the_committed_trees_are_the_same(stage):
    """FAULTS 19: three kills under load; nothing committed is lost, nothing appears twice."""
    stage.folder.joinpath("calm").mkdir()
    stage.folder.joinpath("storm").mkdir()
    base = stage.folder
    calm = run(stage, "calm", kills=0)
    stage.folder = base
    storm = run(stage, "storm", kills=3)

    assert {f"x{number}": TURNS for number in range(10)} == {
        name: len(calls) for name, calls in calm.items()
    }
    assert calm == storm
    reopened = [grow(read(path).records) for path in logs(base / "storm" / "run")]
    assert all(tree.is_complete for tree in reopened)
    assert 0 < sum(len(tree.failed) for tree in reopened)


def test_what_a_machine_loses_of_its_logs_comes_back_from_the_journal(stage):
    """A reply that left is on the disk, even if only in the journal (SPEC 4.5, 10)."""
    proxy = stage.proxy(stage.engine())
    executions = [proxy.open(f"x{number}") for number in range(5)]

    async def drive():
        progress = asyncio.Semaphore(0)
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for execution in executions:
                group.create_task(agent(session, execution, progress))

    asyncio.run(drive())
    # A reply reaches its client a moment before its delivery is noted.
    wait_until(lambda: not proxy.metrics()["gyre_calls_in_flight"], "every delivery is noted")
    proxy.kill()
    folder = stage.folder / "run"
    before = committed(folder)
    for number, path in enumerate(logs(folder)):
        # Opening an execution syncs its log; of what follows a crash may keep any beginning.
        kept = (len(path.read_bytes()) - 300) * number // 4 + 300
        with path.open("r+b") as file:
            file.truncate(kept)
    proxy.restart()

    after = committed(folder)
    assert {name: TURNS for name in before} == {name: len(found) for name, found in before.items()}
    # Of the last reply only the note of its delivery may be missing: nobody waited for that.
    missing = {name: len(before[name] - after[name]) for name in before}
    assert set(missing.values()) <= {0, 1}
    assert all(after[name] <= before[name] for name in before)
    recorded = [len(grow(read(path).records).calls) for path in logs(folder)]
    assert [TURNS] * 5 == recorded


def test_two_proxies_do_not_share_a_run_folder(stage):
    engine = stage.engine()
    stage.proxy(engine)
    with pytest.raises(RuntimeError, match="ended with 2"):
        stage.proxy(engine)


def test_a_closed_key_stays_closed_after_a_restart(stage):
    """SPEC 4.7: a key works only while its execution is open, whoever reads the log."""
    proxy = stage.proxy(stage.engine())
    execution = proxy.open("x")
    proxy.close("x")
    proxy.kill()
    proxy.restart()

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(
        f"{execution.url}/v1/chat/completions",
        data=body,
        headers={"authorization": f"Bearer {execution.key}"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    assert 401 == refused.value.code
    assert "closed" in json.load(refused.value)["error"]["message"]
    assert 2 == len(read(next(logs(stage.folder / "run"))).records)


def test_the_run_folder_is_private_and_holds_no_key(stage):
    proxy = stage.proxy(stage.engine())
    execution = proxy.open("x")
    folder = stage.folder / "run"

    assert 0o700 == folder.stat().st_mode & 0o777
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert execution.key.encode() not in path.read_bytes()
        assert 0 == path.stat().st_mode & 0o077
