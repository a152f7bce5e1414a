"""A run whose processes are killed before it has begun: it begins again, as a resumed one would."""

import asyncio

import pytest

from gyre.cluster.process import SpawnedProcess
from gyre.controller import controller
from gyre.controller.controller import MOST_FIRST_STARTS, Controller
from gyre.scheduler.messages import StopReason
from gyre.types.errors import CellGone, ConfigError, ProcessKilled


class Starting(Controller):
    """What becomes of each start is said beforehand."""

    def __init__(self, *ends, has_begun=False):
        self._ends = list(ends)
        self._has_begun = has_begun
        self._resumes = False
        self.resumed = []

    async def _once(self, stop_requested):
        self.resumed.append(self._resumes)
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(controller, "BEAT_S", 0.0)


KILLED = ProcessKilled("cell-0: ended with status -9\nits last line")


@pytest.mark.parametrize("error", [KILLED, CellGone("cell 0: save: gone")])
def test_it_begins_again_where_a_process_was_killed(error, capsys):
    run = Starting(error, StopReason.FINISHED)

    assert StopReason.FINISHED == asyncio.run(run.work())
    assert [False, True] == run.resumed
    said = f"gyre: the run begins again, because a process of it was killed: {error}\n"
    assert said == capsys.readouterr().err


def test_it_is_given_up_with_the_last_lines_of_the_process():
    run = Starting(*[KILLED] * 9)

    with pytest.raises(ProcessKilled, match="its last line"):
        asyncio.run(run.work())

    assert MOST_FIRST_STARTS == len(run.resumed)


@pytest.mark.parametrize(
    ("error", "has_begun"), [(ConfigError("no such model"), False), (KILLED, True)]
)
def test_what_another_start_would_not_mend_is_not_tried_again(error, has_begun):
    run = Starting(error, has_begun=has_begun)

    with pytest.raises(type(error)):
        asyncio.run(run.work())

    assert [False] == run.resumed


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ProcessKilled),
        ("raise SystemExit(2)", ConfigError),
    ],
)
def test_a_process_that_was_killed_is_told_from_one_that_refused(tmp_path, code, kind):
    async def work():
        one = await SpawnedProcess.start("one", ("-c", code), tmp_path / "one.log")
        try:
            await one.ready(60.0)
        finally:
            await one.stop()

    with pytest.raises(ConfigError, match="one: ended with status") as found:
        asyncio.run(work())

    assert kind is type(found.value)
