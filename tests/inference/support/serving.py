"""A served engine for tests: in this process without a network, or as a program of its own."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from safetensors.torch import save_file
from tests.inference.support import slow_engine
from tests.waiting import PATIENCE_S

from gyre.config.sections import LimitsConfig
from gyre.inference.engine.async_engine import EmbeddedEngine
from gyre.inference.kv_transfer import SharedFolderKvStore
from gyre.inference.server.protocol import ServedModel
from gyre.inference.server.server import Server


class Letters:
    """A tokenizer of one character per id, with the last id special."""

    special = slow_engine.VOCABULARY - 1

    def encode(self, text):
        return [ord(letter) % self.special for letter in text]

    def decode(self, ids, *, skip_special):
        shown = [one for one in ids if one != self.special or not skip_special]
        return "".join("#" if one == self.special else chr(64 + one) for one in shown)

    def whole(self, ids):
        return self.decode(ids, skip_special=False)


@dataclass
class Answered:
    """What came back over HTTP."""

    status: int | None = None
    kind: str = ""
    parts: list[bytes] = field(default_factory=list)
    is_whole: bool = False

    @property
    def body(self):
        return b"".join(self.parts)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """The data of each event; the stream has to end as it should."""
        *events, last, rest = self.body.split(b"\n\n")
        assert (b"data: [DONE]", b"") == (last, rest)
        return [json.loads(one.removeprefix(b"data: ")) for one in events]


class Client:
    """Speaks ASGI to an application, and may hang up."""

    def __init__(self, application):
        self._application = application

    async def post(self, path, body=None, **how):
        return await self.send("POST", path, body, **how)

    async def get(self, path, **how):
        return await self.send("GET", path, **how)

    async def send(self, method, path, body=None, *, hang_up=None, on_part=None, headers=()):
        """The answer; `hang_up` is an event after which the client is gone."""
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body)
        answered = Answered()
        asked = False

        async def receive():
            nonlocal asked
            if not asked:
                asked = True
                sent = data if isinstance(data, bytes) else data.encode()
                return {"type": "http.request", "body": sent, "more_body": False}
            await (hang_up or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(event):
            if event["type"] == "http.response.start":
                answered.status = event["status"]
                answered.kind = dict(event["headers"])[b"content-type"].decode()
                return
            answered.parts.append(event["body"])
            answered.is_whole = not event["more_body"]
            if on_part is not None:
                on_part(event["body"])

        scope = {"type": "http", "method": method, "path": path}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
        await self._application(scope, receive, send)
        return answered


@asynccontextmanager
async def served(
    network=None,
    *,
    key=None,
    tokenizer=None,
    end_ids=(),
    limits=None,
    patience_s=PATIENCE_S,
    share=None,
    kv_store=None,
    pin_s=600.0,
    **how,
):
    """A client of a served engine over a small random model."""
    network = slow_engine.network() if network is None else network
    decode = None if tokenizer is None else tokenizer.whole
    loop = slow_engine.loop(network, decode=decode, **how)
    engine = EmbeddedEngine("small", loop)
    about = ServedModel(
        model="small",
        name="letters",
        context_tokens=loop.context_tokens,
        tokenizer=tokenizer,
        end_ids=end_ids,
    )
    if share is not None:
        kv_store = SharedFolderKvStore(share)
    server = Server(
        engine,
        about,
        limits=LimitsConfig() if limits is None else limits,
        kv_bytes=2**20,
        key=key,
        kv_store=kv_store,
        patience_s=patience_s,
        pin_s=pin_s,
    )
    client = Client(server)
    client.server = server
    client.engine = engine
    client.network = network
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield client
    finally:
        await engine.close()
        if share is not None:
            kv_store.close()


def write_model(folder, network):
    """The network as a folder that can be served."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        name: getattr(network.module.config, name)
        for name in (
            "model_type",
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "tie_word_embeddings",
        )
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(slow_engine.weights(network), folder / "model.safetensors")
    return folder


class ServeProcess:
    """One running `gyre serve`; leaving the context ends it."""

    def __init__(self, model, *options):
        command = [sys.executable, "-W", "error", "-m", "gyre", "serve", str(model), "--port", "0"]
        self._child = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in self._child.stdout:
            if line.startswith("gyre serve: "):
                self.url = line.split()[2]
                self.said = line
            if line == "ready\n":
                return
        self._child.stdout.close()
        raise RuntimeError(f"the server ended with {self._child.wait()} before it was ready")

    def stop(self):
        """SIGTERM; the exit status."""
        self._child.send_signal(signal.SIGTERM)
        return self._child.wait(timeout=PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(timeout=PATIENCE_S)
        self._child.stdout.close()
