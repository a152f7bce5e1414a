"""The scripted engine's server, as an ASGI application in a server of a user's own."""

import asyncio

from gyre.testing.engine_server import ScriptedServer, VllmWire
from gyre.testing.script import FastCoder, Script, ScriptedModel
from gyre.testing.tokenizer import tokenizer


def test_a_client_that_leaves_before_its_body_is_whole_is_no_error():
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    model = ScriptedModel(Script([]), FastCoder(tokenizer()))
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    asyncio.run(ScriptedServer(model, VllmWire())(scope, receive, send))

    assert [] == sent
