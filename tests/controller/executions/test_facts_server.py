"""Facts posted to the controller: with the token, whole, and in the shape of a fact."""

import asyncio
import json

import pytest

from gyre.controller.executions.facts_server import FactsServer
from gyre.rollout.facts import FactEntry
from gyre.types.outcomes import Closed, Outcome

FACT = Closed(outcome=Outcome.VALID, score=0.5, reason=None)
BODY = {"execution": "g0-0"} | json.loads(FactEntry(sequence=3, at=1.0, fact=FACT).encode())


def posted(body, *, token="t", method="POST", path="/facts"):
    """The status and what was heard."""
    heard = []
    sent = []

    async def taken(execution, entry):
        heard.append((execution, entry.sequence, entry.fact))

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }
    asyncio.run(FactsServer("t", taken)(scope, receive, send))
    return sent[0]["status"], heard


def test_a_fact_is_heard():
    assert (200, [("g0-0", 3, FACT)]) == posted(json.dumps(BODY).encode())


@pytest.mark.parametrize(
    ("body", "how", "status"),
    [
        (BODY, {"token": "other"}, 401),
        (BODY, {"token": ""}, 401),
        (BODY, {"path": "/elsewhere"}, 404),
        (BODY, {"method": "GET"}, 404),
        ({**BODY, "execution": None}, {}, 400),
        ({**BODY, "fact": "dreamed"}, {}, 400),
        ({**BODY, "sequence": "first"}, {}, 400),
        ({**BODY, "outcome": "fine"}, {}, 400),
        ([], {}, 400),
    ],
)
def test_anything_else_is_refused_and_not_heard(body, how, status):
    assert (status, []) == posted(json.dumps(body).encode(), **how)


def test_what_is_no_json_is_refused():
    assert (400, []) == posted(b"\xff{")
