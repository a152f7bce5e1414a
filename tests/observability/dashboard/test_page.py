"""The page of a run: who may see it, what it is given, and news as they are written."""

import asyncio
import os
import socket
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.controller.support.proxy_requests import Asking
from tests.observability.support.journals import SMALL, simulated, told
from tests.waiting import PATIENCE_S, until

from gyre.cli.main import main
from gyre.journal.journal import Durability, Journal, write
from gyre.observability.dashboard.journal_follower import KEYS, FollowedRun, watched
from gyre.observability.dashboard.panels import PANELS
from gyre.observability.dashboard.server import DashboardServer, is_local
from gyre.scheduler.messages import EvaluationId, EvaluationRequested, RunStarted
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of
from gyre.types.errors import ConfigError, LogDamaged

KEY = "k" * 32
IN = {"authorization": f"Bearer {KEY}"}


class Trees:
    """Of a run with one execution."""

    def __init__(self, folder):
        self.folder = folder

    def tree(self, execution):
        if execution == "damaged":
            raise LogDamaged("damaged at byte 9")
        if execution not in ("g0-0", "eval-000001"):
            raise ConfigError(f"no execution {execution}")
        return {"execution": execution}

    def call(self, execution, number):
        return self.tree(execution) | {"call": number}

    def left(self, execution):
        return self.tree(execution) | {"left": None}


@pytest.fixture(scope="module")
def facts():
    return list(told(simulated(SMALL)[1]))


@pytest.fixture(scope="module")
def place(facts, tmp_path_factory):
    """The folder of a run that is over."""
    folder = tmp_path_factory.mktemp("run")
    header = header_of(SMALL, started_at=5.0)
    write(folder / "journal", header, facts, kinds=JOURNAL_EVENTS)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text("<title>Gyre</title>")
    (folder / "plot.js").write_text("export {}")
    (folder / "notes.txt").write_text("not a part of it")
    return folder


def page_of(*places, files, key=KEY):
    runs = watched(list(places))
    return runs, DashboardServer(runs, key=key, trees=Trees, folder=files)


def looked(*places, files):
    """A page whose journals were read."""

    async def look():
        runs, page = page_of(*places, files=files)
        for one in runs.values():
            await one.look()
        return page

    return asyncio.run(look())


@pytest.fixture(scope="module")
def page(place, files):
    return looked(place, files=files)


def asked(page, path, headers=None, **how):
    """The answer to one request."""

    async def ask():
        return await Asking(page, path, IN if headers is None else headers, **how).whole()

    return asyncio.run(ask())


# Who may see it


@pytest.mark.parametrize(
    ("path", "headers", "how", "status"),
    [
        ("/", {}, {}, 401),
        ("/api/runs", {}, {}, 401),
        ("/api/news", {}, {}, 401),
        ("/page/plot.js", {}, {}, 401),
        ("/api/runs", {"authorization": "Bearer other"}, {}, 401),
        ("/api/runs", {"cookie": "gyre-8000=other"}, {}, 401),
        ("/api/runs", {"cookie": f"gyre-8001={KEY}"}, {}, 401),
        ("/api/runs", {"cookie": f"gyre-8000={KEY}"}, {}, 200),
        ("/api/runs", {"cookie": f'other={{"a": 1}}; no cookie; gyre-8000={KEY}'}, {}, 200),
        ("/api/runs", IN, {}, 200),
        ("/?key=other", {}, {}, 401),
        ("/api/runs", IN, {"method": "POST"}, 405),
        ("/api/runs", IN | {"host": "evil.example:8000"}, {}, 403),
        ("/api/runs", IN | {"host": ""}, {}, 403),
        ("/api/runs", IN | {"host": "localhost:9"}, {}, 200),
    ],
)
def test_only_whoever_has_the_key_is_answered(page, path, headers, how, status):
    assert status == asked(page, path, headers, **how).status


def test_the_link_becomes_a_cookie_and_leaves_the_address(page):
    answer = asked(page, f"/?key={KEY}", {})

    assert (303, "/") == (answer.status, answer.headers["location"])
    assert f"gyre-8000={KEY}; HttpOnly; SameSite=Strict; Path=/" == answer.headers["set-cookie"]


def test_a_page_without_a_key_is_not_made(place, files):
    with pytest.raises(ConfigError, match="key"):
        page_of(place, files=files, key="")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:80", True),
        ("localhost", True),
        ("[::1]:80", True),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_names_of_this_machine_are_known(host, expected):
    assert expected == is_local(host)


# What it is given


def test_files_of_the_page_and_no_others_are_served(page):
    front, script = asked(page, "/"), asked(page, "/page/plot.js")

    assert (200, b"<title>Gyre</title>") == (front.status, front.body)
    assert "text/html; charset=utf-8" == front.headers["content-type"]
    assert "default-src 'self'" in front.headers["content-security-policy"]
    assert (200, "text/javascript; charset=utf-8") == (
        script.status,
        script.headers["content-type"],
    )
    for name in ("notes.txt", "../page/plot.js", "/etc/passwd", "..%2fjournal", "", "nothing.js"):
        assert 404 == asked(page, f"/page/{name}").status


def test_runs_are_named(page, place):
    expected = {"key": "a", "name": "scene", "place": str(place), "is_simulated": True}

    assert {"format": 1, "runs": [expected]} == asked(page, "/api/runs").json


def test_a_story_has_the_run_the_moment_and_every_panel(page):
    found = asked(page, "/api/story").json

    assert {"format", "run", "shape", "moment", "panels"} == set(found)
    assert ("ended", "finished", 5.0) == tuple(
        found["run"][name] for name in ("state", "ended", "started_at")
    )
    assert {*PANELS, "trees"} == set(found["panels"])
    assert (12, 12) == (found["moment"]["version"], found["shape"]["steps"])


def test_a_story_is_shown_at_any_moment(page, facts):
    end_s = facts[-1][0]
    found = asked(page, f"/api/story?at={end_s / 2}&panels=steps,water&points=50").json

    assert ["steps", "water"] == list(found["panels"])
    assert end_s / 2 == found["run"]["at_s"] == found["run"]["to_s"] == found["moment"]["at_s"]
    assert 0 < found["moment"]["version"] < 12
    assert max(found["panels"]["steps"]["at_s"]) <= end_s / 2
    assert len(found["panels"]["water"]["at_s"]) <= 56


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/story?run=b", 404, "run b"),
        ("/api/story?at=soon", 400, "at"),
        ("/api/story?at=nan", 400, "at"),
        ("/api/story?at=-1", 400, "at"),
        ("/api/story?points=1", 400, "points"),
        ("/api/story?points=99999999999", 400, "points"),
        ("/api/story?panels=water,fire", 400, "fire"),
        ("/api/story?colour=red", 400, "colour"),
        ("/api/executions?order=luck", 400, "order"),
        ("/api/executions?ending=happy", 400, "ending"),
        ("/api/executions?group=10000", 400, "group"),
        ("/api/executions?limit=1001", 400, "limit"),
        ("/api/tree?run=a", 404, "execution"),
        ("/api/tree?execution=g9-9", 404, "no execution g9-9"),
        ("/api/tree?execution=damaged", 422, "damaged at byte 9"),
        ("/api/call?execution=g0-0&call=x", 400, "call"),
        ("/api/elsewhere", 404, "no such path"),
        (f"/api/story?at={'9' * 3000}", 400, "query"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(page, path, status, said):
    answer = asked(page, path)

    assert status == answer.status
    assert said in answer.json["error"]


def test_executions_say_whether_they_have_a_tree(page, place):
    (place / "executions").mkdir()
    (place / "executions" / "g2-1.calls").touch()
    rows = asked(page, "/api/executions?group=2").json["rows"]

    assert [f"g2-{member}" for member in range(8)] == [row["execution"] for row in rows]
    assert ["g2-1"] == [row["execution"] for row in rows if row["has_tree"]]
    assert [1] * 8 == [row["step"] for row in rows]


def test_executions_of_held_out_evaluation_are_asked_for_by_kind(files, tmp_path):
    numbers = [EvaluationId(one) for one in range(2)]
    header = header_of(SMALL, started_at=5.0)
    header = replace(header, shape={**header.shape, "evaluation_slots": 2})
    requests = [(1.0, EvaluationRequested(evaluation=one)) for one in numbers]
    write(tmp_path / "journal", header, [(0.0, RunStarted()), *requests], kinds=JOURNAL_EVENTS)
    (tmp_path / "executions").mkdir()
    (tmp_path / "executions" / "eval-000001.calls").write_bytes(b"")
    page = looked(tmp_path, files=files)
    rows = asked(page, "/api/executions?kind=held-out").json["rows"]

    assert [("eval-000000", False), ("eval-000001", True)] == [
        (row["execution"], row["has_tree"]) for row in rows
    ]
    assert 400 == asked(page, "/api/executions?kind=other").status
    assert asked(page, "/api/tree?execution=eval-000001").json["is_held_out"]


def test_trees_are_opened_once_however_many_ask_at_once(place, files):
    """A page asks for a tree and for what it left behind together."""
    opened = []
    all_asked = threading.Event()

    class Slow(Trees):
        def __init__(self, folder):
            opened.append(folder)
            assert all_asked.wait(PATIENCE_S)
            super().__init__(folder)

    async def both():
        runs = watched([place])
        page = DashboardServer(runs, key=KEY, trees=Slow, folder=files)
        await runs["a"].look()
        asking = [asyncio.create_task(page._trees_of("a", place)) for _ in range(3)]
        await until(lambda: opened, "the first who opens them")
        all_asked.set()
        return await asyncio.gather(*asking)

    found = asyncio.run(both())
    assert [place] == opened
    assert 1 == len({id(one) for one in found})


def test_trees_are_asked_of_whoever_reads_them(page):
    tree = {"execution": "g0-0", "is_held_out": False}

    assert tree == asked(page, "/api/tree?execution=g0-0").json
    assert 7 == asked(page, "/api/call?execution=g0-0&call=7").json["call"]
    assert asked(page, "/api/left?execution=g0-0").json["left"] is None


def test_a_simulated_run_opens_in_the_same_page_and_has_no_trees(place, files):
    page = looked(place / "journal", files=files)

    assert 404 == asked(page, "/api/tree?execution=g0-0").status
    assert asked(page, "/api/story?panels=trees").json["panels"]["trees"] is None
    assert 8 == asked(page, "/api/executions?limit=3&group=2").json["total"]


# Which runs


def test_runs_are_watched_side_by_side_and_each_once(place):
    journal = place / "journal"

    assert ["a", "b"] == list(watched([place, journal, place]))
    with pytest.raises(ConfigError, match="nowhere: expected the folder of a run"):
        watched([place / "nowhere"])
    with pytest.raises(ConfigError, match="9 runs: expected at most 8"):
        watched([place / str(number) for number in range(len(KEYS) + 1)])


def test_a_port_that_is_taken_is_named(place, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert 2 == main(["watch", str(place), "--port", str(port)])
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_journal_that_makes_no_run_is_a_problem_that_is_told(facts, tmp_path):
    header = header_of(SMALL, started_at=5.0)
    write(tmp_path / "journal", header, facts[5:20], kinds=JOURNAL_EVENTS)

    async def looked():
        run = FollowedRun(tmp_path, key="a")
        await run.look()
        return run

    run = asyncio.run(looked())

    assert "came before the run started" in run.problem


# News


def test_news_come_as_they_are_written(facts, files, tmp_path):
    asyncio.run(follows(facts, files, tmp_path))


async def follows(facts, files, folder):
    path, third = folder / "journal", len(facts) // 3
    header = header_of(SMALL, started_at=5.0)
    with Journal.create(
        path, header, kinds=JOURNAL_EVENTS, durability=Durability.PROCESS
    ) as journal:
        runs, page = page_of(folder, files=files)
        following = asyncio.create_task(runs["a"].follow())
        news = Asking(page, "/api/news", IN)
        for since, until in pairwise((0, third, 2 * third, len(facts))):
            for now, fact in facts[since:until]:
                journal.append(fact, now=now)
            journal.commit()
            while (message := await news.news())[1]["sequence"] < until:
                pass

            assert ("news", "a", facts[until - 1][0]) == (
                message[0],
                message[1]["run"],
                message[1]["now_s"],
            )
        assert ("ended", "finished") == (message[1]["state"], message[1]["ended"])
        sound = path.stat().st_size
    os.truncate(path, sound - 1)
    again = await news.news()

    assert again[1]["sequence"] < len(facts)

    await news.leave()
    following.cancel()


def test_news_end_when_the_page_stops(place, files):
    async def stopped():
        _, page = page_of(place, files=files)
        news = Asking(page, "/api/news", IN)
        await news.news()
        await page.stop()
        parts = [await news.part()]
        while parts[-1]["more_body"]:
            parts.append(await news.part())
        return parts[-1]

    assert not asyncio.run(stopped())["more_body"]
