"""Facts posted to a listener that is sometimes away."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.waiting import PATIENCE_S

from gyre.rollout.facts import FactEntry, FactReporter
from gyre.types.outcomes import Prepared


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Nobody gives up on a listener that is there."""
    monkeypatch.setattr("gyre.rollout.facts.LAST_S", PATIENCE_S)


class Listener:
    """Answers with the statuses it is given, then with 200; keeps what it took."""

    def __init__(self, *statuses):
        self.heard = []
        remaining = list(statuses)
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = remaining.pop(0) if remaining else 200
                heard.append((status, self.headers["authorization"], body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/facts"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def entries(count):
    return [FactEntry(sequence=n, at=1.0, fact=Prepared(mark=str(n))) for n in range(count)]


def tell(url, count):
    with FactReporter(url, "token", "e1") as teller:
        for entry in entries(count):
            teller.report(entry)


def test_facts_arrive_in_order_with_their_sequence_and_the_token():
    with Listener() as listener:
        tell(listener.url, 3)

    assert [0, 1, 2] == [body["sequence"] for _, _, body in listener.heard]
    assert {"Bearer token"} == {token for _, token, _ in listener.heard}
    fact = {"fact": "prepared", "mark": "0", "levels": []}
    assert {"execution": "e1", "sequence": 0, "at": 1.0, **fact} == listener.heard[0][2]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([503, 500], [(503, 0), (500, 0), (200, 0), (200, 1)]), ([401], [(401, 0), (200, 1)])],
)
def test_what_may_pass_is_tried_again_and_a_refusal_is_not(statuses, expected):
    with Listener(*statuses) as listener:
        tell(listener.url, 2)

    assert expected == [(status, body["sequence"]) for status, _, body in listener.heard]


def test_without_a_url_nothing_is_posted():
    tell(None, 2)


def test_a_listener_that_is_away_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("gyre.rollout.facts.LAST_S", 0.1)
    # A port that is held and not listened on: nobody else gets it, and whoever asks is refused.
    with socket.socket() as away:
        away.bind(("127.0.0.1", 0))
        tell(f"http://127.0.0.1:{away.getsockname()[1]}/facts", 2)
