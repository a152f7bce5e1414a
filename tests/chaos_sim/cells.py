"""Simulated cells: an engine and a trainer without a network, which obey orders as real ones do."""

import asyncio
import json
from pathlib import Path

import msgspec
from tests.chaos_sim.meeting import Meeting
from tests.chaos_sim.weights import (
    FIRST,
    next_weights,
    read_moments,
    read_weights,
    write_optimizer,
    write_weights,
)

from gyre.batching.group_packer import unpacked
from gyre.cell.spec import CellSpec
from gyre.storage.files import read_plan
from gyre.types.errors import CellError, CheckpointError, ModelError


class Cells:
    """What the simulated cells of one machine share: their meetings, and who watches them."""

    def __init__(self, machine, network, watch, rng, *, write_s):
        self.machine = machine
        self.network = network
        self.watch = watch
        self.rng = rng
        self.write_s = write_s
        self.meetings = {}
        self.by_netloc = {}
        self.by_number = {}

    def start(self, name, arguments, *, log):
        plan = read_plan(Path(arguments[0]), CellSpec)
        cell = Cell(self, plan)
        return self.machine.start(name, cell.live)


class Cell:
    """One cell process, or a standalone engine."""

    def __init__(self, cells, plan):
        self._cells = cells
        self.plan = plan
        self.number = plan.cell
        self.netloc = self.key = ""
        self.born_s = 0.0
        self.node = None
        self.engine_version, self.engine_weights = plan.version, FIRST
        self.is_serving = True
        self.version, self.weights, self.moments = plan.version, FIRST, FIRST
        self.held = {}
        """By lease: what the claim put into the sum."""
        self.reduced = None
        self._trainer = asyncio.Lock()
        self._orders = {
            name: getattr(self, f"_{name}")
            for name in (
                "enter", "leave", "expose", "pull", "meet", "reduce", "step", "spread", "save",
                "checkpoint", "load",
            )
        }  # fmt: skip

    async def live(self, process):
        rng = self._cells.rng
        self.node = process.simulated
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        self.key = self.plan.key_file.read_text().strip()
        self._begin()
        port = self.plan.port or self._cells.network.port()
        self.netloc = f"127.0.0.1:{port}"
        self._cells.network.listen(self.netloc, process.simulated, self.answer)
        self._cells.by_netloc[self.netloc] = self
        self._cells.by_number[self.number] = self
        self.born_s = asyncio.get_running_loop().time()
        process.say_ready(f"http://{self.netloc}")
        await asyncio.Event().wait()

    def _begin(self):
        """From a checkpoint, where there is one to begin from; the core has its optimizer too."""
        folder = self.plan.checkpoint
        if folder is None:
            return
        version, weights = read_weights(folder)
        self.engine_version, self.engine_weights = version, weights
        self.version, self.weights = version, weights
        if self.plan.optimizer is not None:
            self.moments, self.weights = read_moments(folder)

    # Orders

    async def answer(self, scope, receive, send):
        path = scope["path"]
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        body = (await receive())["body"]
        try:
            if headers.get("authorization") != f"Bearer {self.key}":
                raise CellError("another controller's orders are obeyed here", retryable=False)
            found = await self._answer(path, headers, body)
            status, text = 200, msgspec.json.encode(found)
        except CellError as error:
            refusal = {
                "kind": type(error).__name__, "message": str(error), "retryable": error.retryable,
            }  # fmt: skip
            status, text = 500, msgspec.json.encode(refusal)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text, "more_body": False})

    async def _answer(self, path, headers, body):
        if path == "/cell/health":
            return self._health()
        if path == "/model_info":
            return {"context_length": 8192}
        name = path.removeprefix("/cell/")
        if name in ("train", "score"):
            about = json.loads(headers["x-gyre-claim"])
            async with self._trainer:
                return await (self._train if name == "train" else self._score)(body, about)
        asked = msgspec.json.decode(body) if body else {}
        if name in ("expose", "load", "checkpoint", "save"):
            return await self._orders[name](asked)
        async with self._trainer:
            return await self._orders[name](asked)

    def _health(self):
        trains = self.plan.trains
        return {
            "engine_ready": self.is_serving,
            "engine_version": self.engine_version,
            "trainer_version": self.version if trains else None,
            "claims_at_once": 1,
        }

    async def _takes(self, least_s, most_s):
        await asyncio.sleep(self._cells.rng.uniform(least_s, most_s))

    async def _enter(self, asked):
        self.is_serving = False
        await self._takes(0.05, 0.3)
        self._cells.watch.may_fail(self, "enter")
        return {"rest": 0.1}

    async def _leave(self, asked):
        if not asked.get("keep_sum", False):
            self.held.clear()
        await self._takes(0.05, 0.3)
        self.is_serving = True
        return {"wake": 0.1}

    async def _expose(self, asked):
        version, weights = self.version, self.weights
        await self._takes(0.02, 0.1)
        place = {"kind": "shared", "peer": weights, "key": "", "version": version, "num_bytes": 1}
        part = {"exposure": place, "sheet_bytes": 1, "sheet_xxh3": weights}
        return {"version": version, "parts": [part]}

    async def _pull(self, asked):
        await self._takes(0.05, 0.4)
        self._cells.watch.may_fail(self, "pull")
        self.version, self.weights = asked["version"], asked["parts"][0]["sheet_xxh3"]
        self.held.clear()
        return {"seconds": 0.1}

    async def _meet(self, asked):
        await self._takes(0.01, 0.05)
        return {"seconds": 0.0}

    async def _reduce(self, asked):
        leases = {int(cell): held for cell, held in asked["leases"].items()}
        mine = set(leases.get(self.number, ()))
        if mine != set(self.held):
            odd = sorted(mine ^ set(self.held))
            raise CellError(f"the sum of cell {self.number} is not of its leases: {odd} differ")
        sums = await self._met("reduce", asked, dict(self.held))
        if asked["members"][0] == self.number:
            self.held = {lease: got for one in sums.values() for lease, got in one.items()}
            return {"num_bytes": 0}
        return {"num_bytes": 1}

    async def _step(self, asked):
        if asked["version"] != self.version:
            message = f"a step from version {asked['version']}: the trainer has {self.version}"
            raise CellError(message, retryable=False)
        await self._takes(0.05, 0.2)
        gradient = [one for got in self.held.values() for one in got]
        self.weights = self.moments = next_weights(self.weights, gradient)
        self._cells.watch.stepped(self, asked["version"], gradient)
        self.version += 1
        self.held.clear()
        norm = float(int(self.weights, 16) % 2**40) / 2**40
        return {
            "version": self.version, "gradient_norm": norm, "is_clipped": False, "lr": 1e-6,
            "step_s": 0.1,
        }  # fmt: skip

    async def _spread(self, asked):
        found = await self._met("spread", asked, (self.version, self.weights))
        if asked["members"][0] != self.number:
            self.version, self.weights = found[asked["members"][0]]
            self.held.clear()
        return {"seconds": 0.0}

    async def _met(self, what, asked, brought):
        """What every member brought, once all are there; CellError if one never comes."""
        key = what, asked["epoch"], tuple(asked["members"]), asked.get("version")
        meeting = self._cells.meetings.get(key)
        if meeting is None or meeting.is_over:
            meeting = self._cells.meetings[key] = Meeting(asked["members"])
        found = await meeting.met(self, brought, self.plan.timeout_s)
        await self._takes(0.02, 0.1)
        return found

    async def _save(self, asked):
        return await self._write(asked, with_optimizer=False)

    async def _checkpoint(self, asked):
        return await self._write(asked, with_optimizer=True)

    async def _write(self, asked, *, with_optimizer):
        """Whole or absent, the weights first; one that is there is answered with what it holds."""
        watch, folder = self._cells.watch, Path(asked["folder"])
        version, weights, moments = self.version, self.weights, self.moments
        if not folder.exists() and asked.get("version") not in (None, version):
            raise CheckpointError(f"{folder}: gave way to version {version}")
        await self._takes(0.01, self._cells.write_s)
        watch.may_write(self)
        write_weights(folder, version=version, weights=weights)
        found, digest = read_weights(folder)
        if with_optimizer and found == version:
            await self._takes(0.01, self._cells.write_s)
            watch.may_write(self)
            write_optimizer(folder, version=version, weights=weights, moments=moments)
        watch.saved(self, found, digest)
        return {
            "digest": digest, "seconds": 0.1, "num_bytes": 1, "stalled_s": 0.0, "copied_s": 0.0,
            "has_optimizer": (folder / "optimizer").exists(),
        }  # fmt: skip

    async def _load(self, asked):
        await self._takes(0.05, 0.3)
        self._cells.watch.may_fail(self, "load")
        try:
            version, weights = read_weights(Path(asked["folder"]))
        except (OSError, ModelError) as error:
            raise CellError(f"{asked['folder']}: {error}") from error
        if self._cells.watch.flips(self) or weights != asked["digest"]:
            raise CellError(f"{asked['folder']}: expected digest {asked['digest']}, found another")
        self.engine_version, self.engine_weights = version, weights
        return {"digest": weights, "seconds": 0.1}

    async def _train(self, body, about):
        claim = unpacked(body)
        await self._takes(0.02, 0.4)
        self._cells.watch.may_fail(self, "train")
        if about["lease"] in self.held:
            message = f"lease {about['lease']} is in the sum already"
            raise CellError(message, retryable=False)
        self.held[about["lease"]] = self._cells.watch.trained(self, claim, about["num_executions"])
        targets = sum(pack.num_targets for pack in claim.packs)
        return {
            "loss": 0.0,
            "scores": [{"sum_log_ratio": 0.0, "count": one.num_targets} for one in claim.shares],
            "measures": {
                "num_targets": targets, "num_capped": 0, "num_raised": 0, "num_raised_clipped": 0,
                "num_lowered": 0, "num_lowered_clipped": 0, "sum_ratio": float(targets),
                "max_gap": None,
            },
            "work": {
                "num_packs": len(claim.packs), "num_skipped": 0, "num_tokens": 1, "num_padding": 0,
                "num_targets": targets, "model_flops": 1.0, "forward_s": 0.1, "backward_s": 0.1,
            },
        }  # fmt: skip

    async def _score(self, body, about):
        claim = unpacked(body)
        await self._takes(0.02, 0.2)
        counts = [{"sum_log_ratio": 0.0, "count": one.num_targets} for one in claim.shares]
        return {"scores": counts}
