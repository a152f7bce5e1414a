"""The machine turns against the run: bombs in sandboxes, a full disk, a clock that jumps."""

import asyncio
import resource
from pathlib import Path

import pytest
from tests.chaos.talking import assert_exact, talked
from tests.controller.support.supervised import order, supervised
from tests.sandboxes.support.inside import Inside

from gyre.rollout import facts
from gyre.storage.call_log import logs, read
from gyre.trajectory.tree import grow
from gyre.types.call_records import CallClosed
from gyre.types.errors import SandboxError
from gyre.types.outcomes import Ending, Outcome
from gyre.types.tasks import Limits

pytestmark = pytest.mark.slow

AGENTS, TURNS = 6, 12
HOUR_S = 3600.0
FORKS = "while :; do sleep 60 & done"
MEMORY = "exec /usr/bin/python3 -c 'x = []\nwhile True: x.append(bytearray(2**22))'"


def test_bombs_in_sandboxes_leave_calls_of_others_alone(stage, tmp_path):
    """FAULTS 15: both go off while others talk, and what these see is a healthy proxy."""
    engine = stage.engine(chunk_tokens=64, chunk_delay_s=0.01)
    proxy = stage.proxy(engine)
    forks = Inside(tmp_path / "forks", made={"most": Limits(processes=40)})
    memory = Inside(tmp_path / "memory", made={"most": Limits(processes=40, memory_bytes=2**27)})
    ended = []

    async def explode(talk):
        talk.holds_last = asyncio.Event()
        await talk.wait_done(5, in_flight=2)
        await forks.start(FORKS)
        await memory.start(MEMORY)
        waiting = [asyncio.create_task(one.sandbox.wait()) for one in (forks, memory)]
        ended.extend(await asyncio.gather(waiting[1], return_exceptions=True))
        # Others have something to say yet, however long that took.
        talk.holds_last.set()
        await talk.wait_done(AGENTS * TURNS - AGENTS)
        for one in (forks, memory):
            await one.sandbox.kill()
        await asyncio.gather(*waiting, return_exceptions=True)

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=explode)

    assert isinstance(ended[0], SandboxError)
    assert [] == talk.refused
    assert_exact(stage.folder / "run", [engine], agents=AGENTS, turns=TURNS)
    assert talk.slowest_s() < talk.bearable_s()


def test_a_full_disk_refuses_calls_until_there_is_room(stage):
    """FAULTS 31: what cannot be recorded is refused as retryable, and nothing is there by half."""
    engine = stage.engine("short", chunk_tokens=64)
    proxy = stage.proxy(engine)
    soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE)

    async def fill(talk):
        await talk.wait_done(10, in_flight=2)
        # No file grows any more, as on a disk without room.
        resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (1, hard))
        await talk.wait_refused(2 * AGENTS)
        resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (soft, hard))

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=fill)

    assert 2 * AGENTS <= len(talk.refused)
    assert all("cannot be written" in one for one in talk.refused)
    # A reply reaches its client a moment before its delivery is noted.
    assert 0 == proxy.stop()
    for path in logs(stage.folder / "run"):
        tree = grow(read(path).records)
        assert TURNS == sum(one.committed is not None for one in tree.calls.values())


@pytest.fixture
def jump(tmp_path, monkeypatch):
    """Sets the calendar of every process started from now on so many seconds off."""
    where = tmp_path / "jump"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "jumping"))
    monkeypatch.setenv("GYRE_TEST_JUMP", str(where))

    def to(seconds: float) -> None:
        (tmp_path / "next").write_text(str(seconds))
        (tmp_path / "next").rename(where)

    return to


def test_a_calendar_that_jumps_changes_no_call(stage, jump):
    """FAULTS 33: an hour forward and two back; only the times that people read show it."""
    engine = stage.engine(chunk_tokens=64, chunk_delay_s=0.01)
    proxy = stage.proxy(engine, options=("--idle", "2"))

    async def move(talk):
        for done, seconds in ((10, HOUR_S), (30, -HOUR_S)):
            await talk.wait_done(done, in_flight=2)
            jump(seconds)

    talk = talked(proxy, agents=AGENTS, turns=TURNS, meanwhile=move)

    assert [] == talk.refused
    assert_exact(stage.folder / "run", [engine], agents=AGENTS, turns=TURNS)
    times = [
        one.closed_at
        for path in logs(stage.folder / "run")
        for one in read(path).records
        if isinstance(one, CallClosed)
    ]
    assert 1.9 * HOUR_S < max(times) - min(times) < 2.1 * HOUR_S


HELD = "echo one > work; until [ -e go ]; do sleep 0.05; done; echo two >> work"
"""It works until it is let go."""


@pytest.mark.parametrize(
    ("seconds", "ending"),
    [(HOUR_S, Ending.COMPLETED), (-HOUR_S, Ending.TIMED_OUT)],
    ids=["forward", "back"],
)
def test_deadlines_do_not_follow_the_calendar(tmp_path, jump, seconds, ending):
    """FAULTS 33: an hour forward ends nobody, an hour back gives nobody more time."""
    with supervised(tmp_path / "e", order(HELD)) as one:
        one.wait_for_work()
        jump(seconds)
        if ending is Ending.COMPLETED:
            one.work.with_name("go").touch()
        else:
            one.pass_time()
        found = one.end()
    at = [entry.at for entry in facts.read(tmp_path / "e")]

    assert (ending, Outcome.VALID) == (found.terminated.ending, found.closed.outcome)
    assert abs(max(at) - min(at) - HOUR_S) < 600
