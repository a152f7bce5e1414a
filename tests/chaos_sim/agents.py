"""Supervisors and agents as simulated processes: the real supervision, with programs made up."""

import asyncio
import json
from pathlib import Path, PurePath

import aiohttp
from tests.chaos_sim.loop import NODE

from gyre.rollout import main
from gyre.rollout.main import Secrets, SupervisorProcess
from gyre.rollout.spec import read_order
from gyre.types.errors import EvaluatorError, SandboxError
from gyre.types.outcomes import EvaluatorAnswer, NoAnswer

RETRY_S = 0.5
"""Pause of an agent program before it asks again."""
LAST_S = 5.0
"""How long a fact may take to be posted; a supervisor waits so long for its last."""


class Supervising:
    """Starts supervisors on a simulated machine."""

    def __init__(self, machine, network, watch, rng):
        self.machine = machine
        self.network = network
        self.watch = watch
        self.rng = rng

    def start(self, name, arguments, *, told):
        own = PurePath(Path(arguments[0]).parent.relative_to(self.machine.folder))

        async def live(process):
            path = main._order_file(arguments)
            order, secrets = read_order(path), Secrets(**json.loads(told))
            async with SimTeller(self, order, secrets.token) as teller:
                await SupervisorProcess(path.parent, order, secrets, teller).work()

        return self.machine.start(
            f"supervisor/{name}", live, files=lambda file: file.parent == own, lasts=True
        )

    def surroundings(self):
        """By name, what stands in the real module where something of the machine did."""
        return {
            "agent_sandbox": lambda order, *said, **how: SimSandbox(self, order),
            "judging_sandbox": lambda *said, **how: None,
            "evaluator_for": lambda order, *said, **how: SimEvaluator(self, order),
        }

    def append(self, append):
        """What stands where `FactsFile.append` does: the watch knows what was written."""

        def appended(facts, fact, *, at):
            found = append(facts, fact, at=at)
            self.watch.supervised(NODE.get().name.split("/")[1], fact)
            return found

        return appended


class SimTeller:
    """Posts facts in order, each until it is taken, and sometimes once more."""

    def __init__(self, world, order, token):
        self._world = world
        self._order = order
        self._session = world.network.session({"authorization": f"Bearer {token}"})
        self._entries = asyncio.Queue()

    async def __aenter__(self):
        self._telling = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error):
        self._entries.put_nowait(None)
        await asyncio.wait({self._telling}, timeout=LAST_S)

    def report(self, entry):
        self._entries.put_nowait(entry)

    async def _work(self):
        while (entry := await self._entries.get()) is not None:
            pause_s = 0.1
            while not await self._is_taken(entry):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_S)
            if self._world.rng.random() < 0.1:
                await self._is_taken(entry)

    async def _is_taken(self, entry):
        body = {"execution": self._order.execution} | json.loads(entry.encode())
        try:
            async with asyncio.timeout(LAST_S):
                async with self._session.post(self._order.facts_url, json=body) as answer:
                    return answer.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False


class SimSandbox:
    """Where one agent runs: another process, which outlives its supervisor until it is killed."""

    levels = ()

    def __init__(self, world, order):
        self._world = world
        self._order = order
        self._name = f"agent/{order.execution}"
        self._process = None

    def address(self, url):
        return url

    async def prepare(self, workspace):
        await asyncio.sleep(self._world.rng.uniform(0.01, 0.1))
        if self._world.watch.has_bad_sandbox(self._order.execution):
            raise SandboxError("no sandbox", retryable=False)

    async def start(self, command, *, output, most_bytes):
        agent = Agent(self._world, self._order, command.variables["OPENAI_API_KEY"])
        self._process = self._world.machine.start(self._name, agent.live, lasts=True)

    async def wait(self):
        return await self._process.wait()

    async def kill(self):
        found = self._world.machine.running.get(self._name)
        if found is not None:
            await found.end(0.0)

    async def freeze(self):
        await self.kill()


class SimEvaluator:
    """Says what the watch wants it to say, in any of the ways in which evaluators go wrong."""

    name = "simulated"

    def __init__(self, world, order):
        self._world = world
        self._order = order

    async def assess(self, workspace, scratch, *, within_s):
        rng = self._world.rng
        said = self._world.watch.judged(self._order.execution)
        takes_s = rng.uniform(0.05, 0.5)
        if said == "hang":
            await asyncio.sleep(within_s)
            raise EvaluatorError(f"took longer than {within_s:g} s")
        await asyncio.sleep(takes_s)
        if said == "crash":
            raise EvaluatorError("broke")
        if said == "silent":
            return NoAnswer(reason="said nothing")
        return EvaluatorAnswer(text=said)


class Agent:
    """An agent program: some calls, each with all that came before, and a pause after each."""

    def __init__(self, world, order, key):
        self._world = world
        self._order = order
        self._key = key

    async def live(self, process):
        world, name = self._world, self._order.execution
        world.watch.agent_started(name)
        self._session = world.network.session({"authorization": f"Bearer {self._key}"})
        plan = world.watch.plan_of(name)
        messages = [{"role": "user", "content": f"do {name}"}]
        for turn in range(plan.turns):
            reply = await self._call(messages)
            messages.append({"role": "assistant", "content": reply})
            if plan.crashes_after == turn:
                raise SystemExitError
            if plan.hangs_after == turn:
                await asyncio.sleep(1e6)
            await asyncio.sleep(world.rng.expovariate(1 / plan.tool_s))
            messages.append({"role": "user", "content": f"result {turn}"})

    async def _call(self, messages):
        """Asked again when the connection breaks; an answer that is no reply is noted."""
        body = {"model": "policy", "messages": messages}
        while True:
            try:
                async with self._session.post(
                    f"{self._order.url}/v1/chat/completions", json=body
                ) as answer:
                    status, found = answer.status, await answer.json()
            except aiohttp.ClientError:
                await asyncio.sleep(self._world.rng.uniform(0.5, 1.0) * RETRY_S)
                continue
            if status == 200:
                text = found["choices"][0]["message"]["content"]
                self._world.watch.answered(self._order.execution, messages, text)
                return text
            self._world.watch.refused(self._order.execution, status, found)
            await asyncio.sleep(RETRY_S)


class SystemExitError(Exception):
    """The agent program ends by itself, with a status that says so."""
