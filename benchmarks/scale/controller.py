"""What a controller does by itself with few and with many executions, alive or adopted."""

import argparse
import asyncio
import gc
import os
import resource
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.live.compare import PACKAGES
from benchmarks.micro.scheduler import SIZE, Host, shape_of
from benchmarks.peers import results

from gyre.controller.command_executor import CommandExecutor
from gyre.controller.controller import JOURNAL_EVENTS
from gyre.controller.executions.group_executions import name_of
from gyre.controller.executions.supervisors import Supervisors
from gyre.controller.recovered_state import RecoveredState, recover
from gyre.controller.routes import ChangeTrackingDict, RouteTables
from gyre.journal.journal import Header, Journal, read
from gyre.rollout.facts import FACTS_FILE, FactEntry
from gyre.rollout.spec import ORDER_FILE, ExecutionSpec
from gyre.scheduler.messages import AdmitGroup, LaunchExecution, Move, MoveExecutions
from gyre.scheduler.replay import plain_shape
from gyre.storage import files
from gyre.types.ids import EngineId, EngineName, ExecutionId, GroupId
from gyre.types.outcomes import Fact, Launched, Prepared
from gyre.types.run_events import GroupDrawn, RewardGiven
from gyre.types.tasks import EvaluationRule, Task

LIVE = (512, 2_048, 8_192)
WEIGHED = 2_048
"""Where memory is asked for, which takes several times as long; it is in proportion."""
ENGINES = 128
HISTORY = 4
"""Executions that are over, for each that lives."""
EVENTS = 50
ENOUGH_FILES = 65_536
TASK = Task(
    id="t",
    instruction="wait",
    files=None,
    evaluation=EvaluationRule(argv=("true",), score="reward.txt"),
    variables={},
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print the samples, write no result")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(ENOUGH_FILES, hard), hard))
    load_before = os.getloadavg()[0]
    samples: dict[str, list[dict[str, Any]]] = {}
    for live in LIVE:
        with tempfile.TemporaryDirectory(prefix="gyre-controller-") as folder:
            for case, work in _cases(Path(folder), live).items():
                samples[f"{case}, {live} live"] = [work() for _ in range(args.runs)]
                print(f"{case}, {live} live", samples[f"{case}, {live} live"], flush=True)
    if not args.dry:
        path = results.write(
            "scale-controller",
            samples=samples,
            settings={"runs": args.runs, "engines": ENGINES, "group": SIZE, "history": HISTORY},
            packages=results.versions({"gyre": (Path(sys.executable), PACKAGES)}),
            load_average=(load_before, os.getloadavg()[0]),
        )
        print(path)


def _cases(folder: Path, live: int) -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        "event": lambda: _event(live),
        "recall": _recalls(folder, live),
        "adopt": _adopts(folder, live),
    }


@contextmanager
def _timed(sample: dict[str, Any], *, calls: int = 1) -> Iterator[None]:
    cpu, began = time.process_time(), time.perf_counter()
    yield
    sample["seconds"] = round((time.perf_counter() - began) / calls, 6)
    sample["cpu_s"] = round(time.process_time() - cpu, 6)
    sample["calls"] = calls


@contextmanager
def _weighed(sample: dict[str, Any], live: int) -> Iterator[list[Any]]:
    """What is left of all allocations while whatever is put into the list lives."""
    kept: list[Any] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield kept
        gc.collect()
        sample["bytes_per_execution"] = round(tracemalloc.get_traced_memory()[0] / live)
    finally:
        tracemalloc.stop()


# An event


def _event(live: int) -> dict[str, Any]:
    """An order that gives one execution another engine is obeyed, and the proxy told of it."""
    running = ChangeTrackingDict[ExecutionId, tuple[GroupId, int]]()
    running.update({name_of(*place): place for place in _places(live)})
    attempts: Any = SimpleNamespace(running=running, name_at=name_of)
    engines = SimpleNamespace(is_ready=lambda engine: True, num_turns=1)
    scheduler: Any = SimpleNamespace(engines=engines)
    nobody: Any = None
    shard: Any = _Told()
    sample: dict[str, Any] = {}

    async def scenario() -> None:
        names = [EngineName(f"127.0.0.1:{40_000 + engine}") for engine in range(ENGINES)]
        routes = RouteTables([shard], names)
        executor = CommandExecutor(nobody, scheduler, attempts, nobody, nobody, routes, None)
        moves = [_move(place, place[0]) for place in running.values()]
        working = asyncio.create_task(routes.work())
        executor.execute((MoveExecutions(moves=tuple(moves), evaluations=()),))
        await routes.flushed()
        first = next(iter(running.values()))
        with _timed(sample, calls=EVENTS):
            for number in range(1, EVENTS + 1):
                executor.execute((MoveExecutions(moves=(_move(first, number),), evaluations=()),))
                await routes.flushed()
        working.cancel()
        assert shard.num_orders == EVENTS + 1

    asyncio.run(scenario())
    return sample


def _move(place: tuple[GroupId, int], engine: int) -> Move:
    group, member = place
    return Move(group=group, member=member, engine=EngineId(engine % ENGINES))


class _Told:
    """A shard that obeys at once."""

    num_orders = 0

    async def assign(self, version: int, routes: Any) -> int:
        self.num_orders += 1
        return 0


def _places(live: int) -> list[tuple[GroupId, int]]:
    return [(GroupId(number // SIZE), number % SIZE) for number in range(live)]


# A return


def _recalls(folder: Path, live: int) -> Callable[[], dict[str, Any]]:
    """The journal of a run with so many executions alive is read, and its scheduler found."""
    path = folder / "journal"
    recorded = _Recorded(path, live)

    def work() -> dict[str, Any]:
        sample: dict[str, Any] = {"facts": recorded.num_facts, "journal_bytes": path.stat().st_size}
        with _timed(sample):
            found = recalled()
        running = sum(1 for one in found.outstanding for _ in one.running)
        assert running == live, running
        if live == WEIGHED:
            with _weighed(sample, live) as kept:
                kept.append(recalled())
        return sample

    def recalled() -> RecoveredState:
        return recover(recorded.shape, read(path, kinds=JOURNAL_EVENTS).facts(JOURNAL_EVENTS))

    return work


class _Recorded(Host):
    """A run that ends the oldest execution again and again, and writes everything down."""

    def __init__(self, path: Path, live: int) -> None:
        self.shape = shape_of(live, ENGINES)
        self.num_facts = 0
        header = Header(run="r", seed=0, started_at=0.0, shape=plain_shape(self.shape), notes={})
        with Journal.create(path, header, kinds=JOURNAL_EVENTS) as self._journal:
            super().__init__(self.shape)
            for _ in range(HISTORY * live):
                self._end(self._running.popleft())
                while self._events:
                    self._turn()

    def _turn(self) -> None:
        fact: Any = self._events[0]
        self._journal.append(fact, now=0.0)
        self.num_facts += 1
        if isinstance(fact, GroupDrawn | RewardGiven):
            # For people: the scheduler never hears of it.
            self._events.popleft()
        else:
            super()._turn()

    def _end(self, one: LaunchExecution) -> None:
        super()._end(one)
        group, member, name = one.group, one.member, name_of(one.group, one.member)
        given = RewardGiven(group=group, member=member, execution=name, score=1.0, ran_s=1.0)
        self._events.insert(-1, given)

    def _obey(self, command: Any) -> None:
        if isinstance(command, AdmitGroup):
            group = command.group
            names = tuple(name_of(group, member) for member in range(command.size))
            drawn = GroupDrawn(group=group, position=group, task="t", executions=names)
            self._events.append(drawn)
        super()._obey(command)


def _adopts(folder: Path, live: int) -> Callable[[], dict[str, Any]]:
    """Executions whose supervisors live are taken up, each by what lies in its folder."""
    folders = {name_of(*place): folder / "attempts" / name_of(*place) for place in _places(live)}
    facts: tuple[Fact, ...] = (Prepared(mark="m"), Launched(monotonic_s=1.0, boot="b"))
    entries = [FactEntry(sequence=number, at=0.0, fact=fact) for number, fact in enumerate(facts)]
    said = b"".join(one.encode() + b"\n" for one in entries)
    for place in folders.values():
        place.mkdir(parents=True)
        (place / ORDER_FILE).touch()
        (place / FACTS_FILE).write_bytes(said)
        # Held by this process in the place of a supervisor, until it ends.
        files.take(place)

    def work() -> dict[str, Any]:
        sample: dict[str, Any] = {"executions": live}
        asyncio.run(_adopted(folders, sample))
        if live == WEIGHED:
            asyncio.run(_kept(folders, sample))
        return sample

    return work


async def _adopted(folders: dict[ExecutionId, Path], sample: dict[str, Any]) -> None:
    """Until all are; and then what looking after them takes, once."""
    with _timed(sample):
        supervisors = await _take_up(folders)
    cpu = time.process_time()
    await supervisors.look()
    sample["look_cpu_s"] = round(time.process_time() - cpu, 6)


async def _kept(folders: dict[ExecutionId, Path], sample: dict[str, Any]) -> None:
    with _weighed(sample, len(folders)) as kept:
        kept.append(await _take_up(folders))


async def _take_up(folders: dict[ExecutionId, Path]) -> Supervisors:
    tasks: list[asyncio.Task[None]] = []
    proxy: Any = SimpleNamespace(held=_nothing_held)
    forker: Any = SimpleNamespace()
    listener: Any = SimpleNamespace()

    def spawn(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    supervisors = Supervisors(
        proxy,
        forker,
        order_of=lambda name, task, url: _order(name),
        facts_token="t",
        spawn=spawn,
    )
    for name, folder in folders.items():
        supervisors.adopt(name, TASK, folder, listener)
    await asyncio.gather(*tasks)
    return supervisors


async def _nothing_held() -> dict[str, float]:
    return {}


def _order(name: ExecutionId) -> ExecutionSpec:
    return ExecutionSpec(
        execution=name,
        task=TASK,
        url=f"http://127.0.0.1:9/exec/{name}",
        harness=("true",),
        variables={},
        agent_s=600.0,
        overall_s=900.0,
    )


if __name__ == "__main__":
    main()
