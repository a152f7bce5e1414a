"""A page over real HTTP, from a process of its own."""

import json
import os
import select
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from tests.observability.support.journals import SMALL, simulated
from tests.waiting import PATIENCE_S

from gyre.journal.journal import Durability, Journal
from gyre.observability.dashboard import server
from gyre.observability.dashboard.server import shown_beside
from gyre.scheduler.replay import JOURNAL_EVENTS
from gyre.simulator.from_journal import header_of

pytestmark = pytest.mark.slow


class Browser:
    """Opens a link and keeps its cookies; asks nobody on the way."""

    def __init__(self, link):
        self.address = link.split("?")[0]
        cookies = urllib.request.HTTPCookieProcessor(CookieJar())
        self._opener = urllib.request.build_opener(cookies, urllib.request.ProxyHandler({}))
        self.front = self.open(link).read().decode()

    def open(self, path):
        return self._opener.open(path if "://" in path else self.address + path, timeout=PATIENCE_S)


def test_a_run_that_begins_is_shown_as_it_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "READY_S", PATIENCE_S)
    facts = simulated(SMALL)[1]
    header = header_of(SMALL, started_at=5.0)
    with shown_beside(tmp_path) as link:
        browser = Browser(link)
        before = json.load(browser.open("api/story"))
        with Journal.create(
            tmp_path / "journal", header, kinds=JOURNAL_EVENTS, durability=Durability.PROCESS
        ) as journal:
            for now, fact in facts:
                journal.append(fact, now=now)
            journal.commit()
        with browser.open("api/news") as news:
            for line in news:
                if f'"sequence":{len(facts)},'.encode() in line:
                    break
        after = json.load(browser.open("api/story?panels=steps"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(browser.address)
        address = browser.address

    assert "<title>" in browser.front
    assert ("starting", None) == (before["run"]["state"], before["panels"])
    assert list(range(1, 13)) == after["panels"]["steps"]["step"]
    with pytest.raises(urllib.error.URLError):
        browser.open(address)


def test_a_page_that_cannot_be_shown_is_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with shown_beside(tmp_path) as link:
        assert link is None
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    with shown_beside(tmp_path) as link:
        assert link is None


def test_the_page_ends_with_whoever_started_it_however_that_ends(tmp_path):
    program = f"""
from pathlib import Path
from gyre.observability.dashboard import server
from gyre.observability.dashboard.server import shown_beside
server.READY_S = {PATIENCE_S}
with shown_beside(Path({str(tmp_path)!r})) as link:
    print(link, flush=True)
    input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        Browser(parent.stdout.readline().strip())
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ended = os.pidfd_open(int(child))
        parent.kill()

        assert ([ended], [], []) == select.select([ended], [], [], PATIENCE_S)

    os.close(ended)
