"""Plays one scene in a process without a network: engine, proxy, relay and the real program."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from staging import cut, relay
from staging.program import Place, argv, launch
from staging.scene import Outcome, Scene

from gyre.testing.processes import EngineProcess, held_port, number_of
from gyre.testing.tokenizer import write_tokenizer

EXECUTION = "play"
LONG_S = 1800.0
"""No engine here hangs: one that was held up is not asked for the same once more."""
SCRIPTS = Path(__file__).with_name("scripts.py")


class ProxyProcess:
    """`gyre proxy` as a child; after a kill it comes back on the same port and run folder."""

    def __init__(self, folder: Path, engine: str, arguments: tuple[str, ...]) -> None:
        self._command = [str(Path(sys.executable).with_name("gyre")), "proxy"]
        self._command += ["--engine", engine, "--model", str(folder / "model")]
        self._command += ["--family", "qwen3", "--run", str(folder / "run")]
        self._command += ["--idle", str(LONG_S), *arguments]
        self._errors = folder / "proxy.err"
        self._child: asyncio.subprocess.Process | None = None
        self.pids: list[int] = []
        # Its own while it is away, so that it can come back.
        self._held = held_port()
        self.port = number_of(self._held)
        self.key = ""

    async def start(self) -> None:
        """Returns once it listens."""
        again = [] if self.pids else ["--open", EXECUTION]
        with self._errors.open("ab") as errors:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                *("--port", str(self.port), *again),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        self.pids.append(self._child.pid)
        assert self._child.stdout is not None
        while (line := (await self._child.stdout.readline()).decode()) != "ready\n":
            if not line:
                said = self._errors.read_text()[-2000:]
                message = f"gyre proxy ended with {await self._child.wait()} at once:\n{said}"
                raise RuntimeError(message)
            if line.lstrip().startswith("execution "):
                self.key = line.split()[-1]

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        self._held.close()
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        assert self._child is not None
        if self._child.returncode is None:
            self._child.send_signal(how)
        return await self._child.wait()


class Prompter:
    """Keeps the engine silent on the calls that are to be cut, so that the cut comes first."""

    def __init__(self, engine: str, proxy: ProxyProcess, scene: Scene) -> None:
        self._engine = engine
        self._proxy = proxy
        self._until_killed = set(scene.kill_in_calls)
        self._cut = {fault.call for fault in scene.faults if fault.kind == "cut"}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the proxy does not come back."""

    async def asked(self, call: int) -> None:
        if call in self._until_killed or call in self._cut:
            await self._steer("fault", {"kind": "stall"})

    async def answered(self, call: int) -> None:
        if call in self._cut:
            # The headers come before the engine is asked; the ask must find the engine silent.
            while not (await self._steer("state", None))["running"]:
                await asyncio.sleep(0.01)
            await self._steer("fault", None)
        elif call in self._until_killed:
            self._until_killed.remove(call)
            if not self._until_killed:
                await self._restart()

    async def _restart(self) -> None:
        await self._proxy.kill()
        await self._steer("fault", None)
        try:
            await self._proxy.start()
        except RuntimeError as error:
            self.broken.set_exception(error)

    async def _steer(self, what: str, how: object) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self._engine}/script/{what}", data=msgspec.json.encode(how)) as answer,
        ):
            answer.raise_for_status()
            return await answer.json()


async def perform(folder: Path, scene: Scene) -> Outcome:
    """The scene from beginning to end."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    (work / "nonce.txt").write_text(scene.nonce + "\n")
    tokenizer = write_tokenizer(folder / "model") / "tokenizer.json"
    script = f"{SCRIPTS}:{scene.script}"
    with EngineProcess(
        "sglang", script=script, tokenizer=tokenizer, log=folder / "asks.jsonl", chunk_tokens=16
    ) as engine:
        proxy = ProxyProcess(folder, engine.address, scene.proxy)
        await proxy.start()
        prompter = Prompter(engine.url, proxy, scene)
        between = await relay.start(
            f"http://127.0.0.1:{proxy.port}", faults=scene.faults, watcher=prompter
        )
        place = Place(
            home=home,
            work=work,
            url=f"http://127.0.0.1:{between.port}/exec/{EXECUTION}",
            key=proxy.key,
            options=scene.options,
        )
        try:
            return await _run(scene, place, proxy, between, prompter)
        finally:
            await between.close()
            await proxy.stop()


async def _run(
    scene: Scene, place: Place, proxy: ProxyProcess, between: relay.Relay, prompter: Prompter
) -> Outcome:
    launched = launch(scene.program, place, scene.task)
    began = time.monotonic()
    child = await asyncio.create_subprocess_exec(
        *argv(scene.program),
        *launched.arguments,
        cwd=place.work,
        env={**launched.environment, **scene.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    exe = str(Path(f"/proc/{child.pid}/exe").readlink())
    talk = asyncio.ensure_future(child.communicate())
    try:
        ends = {talk, prompter.broken}
        await asyncio.wait(ends, timeout=scene.limit_s, return_when=asyncio.FIRST_COMPLETED)
        if prompter.broken.done():
            prompter.broken.result()
        if not talk.done():
            calls = [(seen.call, seen.status) for seen in between.seen]
            message = f"{scene.program} did not end in {scene.limit_s:g} s; calls: {calls}"
            raise RuntimeError(message)
    finally:
        _end_session(child.pid)
    stdout, stderr = await talk
    seconds = time.monotonic() - began
    metrics = await _metrics(proxy.port)
    return Outcome(
        pid=child.pid,
        exe=exe,
        returncode=await child.wait(),
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
        seen=between.seen,
        interfaces=cut.interfaces(),
        routes=cut.routes(),
        metrics=metrics,
        proxy_pids=proxy.pids,
        proxy_status=await proxy.stop(),
        seconds=seconds,
    )


def _end_session(pid: int) -> None:
    """Nothing the program started is left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _metrics(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        return await answer.text()


def main() -> None:
    folder = Path(sys.argv[1])
    scene = msgspec.json.decode((folder / "scene.json").read_bytes(), type=Scene)
    cut.raise_loopback()
    outcome = asyncio.run(perform(folder, scene))
    (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
