"""A run in a terminal: on one screen, or as it goes, and what the exit status says."""

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.observability.support.journals import SMALL, simulated, told

from gyre.cli.main import main
from gyre.controller.main import heard_so_far
from gyre.controller.run_dir import read_run
from gyre.journal.journal import Durability, Journal, write
from gyre.observability.dashboard.api import plain
from gyre.observability.dashboard.journal_follower import FollowedRun
from gyre.observability.terminal.colors import columns
from gyre.observability.terminal.status import LOOK_S, follow, screen
from gyre.scheduler.messages import CellTraining, EngineLost, RunStarted, TimerFired
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of
from gyre.types.errors import ConfigError
from gyre.types.run_events import TOLD, CheckpointFailed, RunEnded

ROOT = Path(__file__).parents[3]
HEADER = header_of(SMALL, started_at=5.0)


@pytest.fixture(scope="module")
def facts():
    return list(told(simulated(SMALL)[1]))


def written(folder, facts):
    write(folder / "journal", HEADER, facts, kinds=JOURNAL_EVENTS)
    return folder


def seen(place):
    lines, status = screen(place, colour=False, encoding=None)
    return "\n".join(lines), status


class Live:
    """A run that goes on whenever whoever follows it waits."""

    def __init__(self, folder, facts, *, at_once):
        self.journal = Journal.create(
            folder / "journal", HEADER, kinds=JOURNAL_EVENTS, durability=Durability.PROCESS
        )
        self.slept_s = 0.0
        self._facts = iter(facts)
        self._at_once = at_once

    def clock(self):
        return self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds
        for _, (now, fact) in zip(range(self._at_once), self._facts, strict=False):
            self.journal.append(fact, now=now)
        self.journal.commit()


def followed(place, live, stream):
    with live.journal:
        return follow(place, stream, colour=False, clock_s=live.clock, sleep=live.sleep)


def test_one_screen_says_how_a_run_stands(tmp_path, facts):
    text, status = seen(written(tmp_path, facts))

    assert 0 == status
    assert text.startswith("scene: finished\n")
    assert "step 12 of 12" in text
    assert "cell 3" in text
    assert all(columns(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) <= 24


def test_a_run_that_nobody_works_on_is_named_and_how_to_go_on(tmp_path, facts):
    text, status = seen(written(tmp_path, facts[:400]))

    assert 3 == status
    assert f"nobody works on it; gyre resume {tmp_path}"[:60] in text


def test_a_run_that_somebody_works_on_runs(tmp_path, facts):
    live = Live(tmp_path, facts, at_once=400)
    with live.journal:
        live.sleep(LOOK_S)
        text, status = seen(tmp_path)

    assert 0 == status
    assert text.startswith("scene: runs in process ")


def test_a_run_that_stopped_itself_has_a_status_of_its_own(tmp_path, facts):
    now = facts[400][0]
    text, status = seen(written(tmp_path, [*facts[:400], (now, RunEnded(reason="the disk"))]))

    assert (1, "scene: the disk") == (status, text.splitlines()[0])


def test_a_run_that_somebody_stopped_can_go_on(tmp_path, facts):
    now = facts[400][0]
    text, status = seen(written(tmp_path, [*facts[:400], (now, RunEnded(reason=TOLD))]))

    assert 3 == status
    assert "scene: nobody works on it; gyre resume " in text


def test_a_run_that_went_on_is_not_over(tmp_path, facts):
    """Nor is it for whoever looks at its page."""
    now = facts[400][0]
    cut = [*facts[:400], (now, RunEnded(reason=TOLD))]
    journal, _ = Journal.resume(written(tmp_path, cut) / "journal", at=9.0, kinds=JOURNAL_EVENTS)
    with journal:
        for when, fact in facts[400:800]:
            journal.append(fact, now=when)
        journal.commit()
        text, status = seen(tmp_path)
        watched = FollowedRun(tmp_path, key="a")
        asyncio.run(watched.look())
        page = plain(watched)

    assert 0 == status
    assert text.startswith("scene: runs in process ")
    assert ("running", None) == (page["run"]["state"], page["run"]["ended"])
    assert "over" != page["moment"]["entering"]["why"]


def test_whoever_resumes_is_not_told_that_it_is_over(tmp_path):
    run = read_run(ROOT / "examples" / "quickstart.toml", [f"run.folder={tmp_path}"])
    ended = [(1.0, RunStarted()), (2.0, RunEnded(reason=TOLD))]
    written(tmp_path, ended)

    assert ended[:1] == heard_so_far(run)


def test_faults_are_on_the_screen(tmp_path, facts):
    now = facts[400][0]
    fault = CheckpointFailed(version=2, reason="no\x1b[31m space")
    text, _ = seen(written(tmp_path, [*facts[:400], (now, fault)]))

    assert "1 fault" in text
    assert "checkpoint of version 2 was not written: no·[31m space" in text


def test_an_engine_that_is_missed_and_a_rescue_are_on_the_screen(tmp_path):
    """The scheduler knows of the first when it has heard of it; the second is its command."""
    one = replace(SMALL, shape=replace(SMALL.shape, standalone_capacities=(16,), rescue_s=30.0))
    events = simulated(one)[1]
    until = next(at for at, (_, event) in enumerate(events) if isinstance(event, CellTraining))
    now = events[until][0]
    lost = [(now, EngineLost(engine=engine)) for engine in (4, 3, 2, 1)]
    late = [(now + 31.0, TimerFired())]
    facts = [*events[: until + 1], *lost, *late]
    write(tmp_path / "journal", header_of(one, started_at=5.0), facts, kinds=JOURNAL_EVENTS)
    text, _ = seen(tmp_path)

    assert "5 faults" in text
    assert "engine 1 stopped answering" in text
    assert "nobody served, and cell 0 was called home" in text


def test_it_is_followed_to_its_end(tmp_path, facts):
    live, stream = Live(tmp_path, facts, at_once=300), io.StringIO()
    status = followed(tmp_path, live, stream)
    lines = stream.getvalue().splitlines()

    assert 0 == status
    assert 12 == sum(" step " in line for line in lines)
    assert "scene: finished" == lines[-1]
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_one_block_is_redrawn(tmp_path, facts):
    live, terminal = Live(tmp_path, facts, at_once=300), Terminal()
    followed(tmp_path, live, terminal)
    before, _, block = terminal.getvalue().rpartition("\x1b[J")

    assert before.count("\x1b[J") > 5
    assert "step 12 of 12, finished" in block.splitlines()[0]
    assert "scene: finished" == block.splitlines()[-1]


def test_who_looks_later_is_told_what_is_new(tmp_path, facts):
    live, stream = Live(tmp_path, facts, at_once=2000), io.StringIO()
    live.sleep(LOOK_S)
    followed(tmp_path, live, stream)

    assert 0 < sum(" step " in line for line in stream.getvalue().splitlines()) < 12


def test_it_is_left_when_nobody_works_on_it(tmp_path, facts):
    place, stream = written(tmp_path, facts[:400]), io.StringIO()
    status = follow(place, stream, colour=False, clock_s=lambda: 0.0, sleep=never)

    assert 3 == status
    assert "nobody works on it" in stream.getvalue()


def never(seconds):
    raise AssertionError("waited for what cannot come")


def test_where_there_is_no_run_it_is_said(tmp_path):
    (tmp_path / "journal").write_bytes(b"GYRE")
    with pytest.raises(ConfigError, match="nothing is recorded yet"):
        screen(tmp_path, colour=False, encoding=None)
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        screen(tmp_path / "nowhere", colour=False, encoding=None)


def test_a_run_of_many_cells_still_fits(tmp_path):
    one = replace(SMALL, shape=replace(SMALL.shape, num_cells=16, cell_capacity=10))
    write(
        tmp_path / "journal",
        header_of(one, started_at=0.0),
        simulated(one)[1],
        kinds=JOURNAL_EVENTS,
    )
    text, _ = seen(tmp_path)

    assert len(text.splitlines()) <= 24


def test_the_commands_say_the_same(tmp_path, facts, capsys):
    place = written(tmp_path, facts[:400])

    assert 3 == main(["status", str(place)])
    assert "nobody works on it" in capsys.readouterr().out
    assert 3 == main(["status", "--json", str(place)])
    assert "silent" == json.loads(capsys.readouterr().out)["run"]["state"]
    assert 3 == main(["top", str(place)])
    assert "nobody works on it" in capsys.readouterr().out
    assert 2 == main(["top", str(place / "nowhere")])
