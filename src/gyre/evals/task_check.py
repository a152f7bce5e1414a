"""Tasks tried without an agent: left untouched, and done by the scripts beside their solution.

Rule 1: each way of doing a task is an execution under a supervisor, judged as in a run, but once.
Rule 2: untouched a task gives its lowest score, and by `solve.sh` its highest; any other script
need only get one.
"""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from gyre.aio import run_loop
from gyre.cluster.fork_client import ForkClient
from gyre.config.run_config import DeadlinesConfig, SandboxConfig, TasksConfig
from gyre.controller.process_specs import deadlines_for, open_tasks, sandbox_for
from gyre.rewards.command import OUTPUT_FILE as JUDGED_FILE
from gyre.rollout import facts
from gyre.rollout.environment import check
from gyre.rollout.execution import steps_of
from gyre.rollout.main import LOG_FILE, Secrets
from gyre.rollout.spec import ExecutionSpec, write_order
from gyre.rollout.supervisor import OUTPUT_FILE
from gyre.storage import safe_dir
from gyre.types.errors import LogDamaged
from gyre.types.ids import ExecutionId
from gyre.types.outcomes import Ending, OutcomeRecord
from gyre.types.tasks import Task, TaskStep

UNTOUCHED = "untouched"
SOLVED = "solve.sh"
NOTHING = "/dev/null"
"""The script of a way that does nothing in a step."""
NO_MODEL = "http://127.0.0.1:9"
"""Stands for the model's address, which no script of a task has a use for."""
DEADLINES = DeadlinesConfig(agent_s=600.0, overall_s=1200.0)
SAID_BYTES = 2_000
SAID_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheck:
    """One way of doing a task, by no script or by one of its own, with its score."""

    way: str
    score: float | None
    problem: str | None = None
    """What is not as it should be."""
    said: tuple[str, ...] = ()
    """The last lines that its programs printed, where there is a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTask:
    """A task with the checks of all its scripts; one that only a judge can score is not tried."""

    task: Task
    ways: tuple[TaskCheck, ...]

    @property
    def is_sound(self) -> bool:
        return all(way.problem is None for way in self.ways)


def check_tasks(
    section: TasksConfig, sandbox: SandboxConfig, report: Callable[[CheckedTask], None]
) -> None:
    """Calls `report` with every task of a source in order; TaskError if one cannot be read."""
    source = open_tasks(section, sandbox=sandbox.kind)
    tasks = [source.get(index) for index in range(len(source))]
    check(sandbox_for(sandbox))

    with tempfile.TemporaryDirectory(prefix="gyre-", ignore_cleanup_errors=True) as folder:
        run_loop(_try_all(tasks, sandbox, Path(folder), report))


async def _try_all(
    tasks: Sequence[Task],
    sandbox: SandboxConfig,
    folder: Path,
    report: Callable[[CheckedTask], None],
) -> None:
    """As many ways at once as there are cores."""
    fork_client = await ForkClient.open("gyre.rollout.main", folder / "nursery.log")
    places = asyncio.Semaphore(os.cpu_count() or 1)

    async def tried(task: Task, at: Path, way: str) -> TaskCheck:
        async with places:
            return await _try(fork_client, _order(task, way, sandbox), at, way)

    running = [
        [asyncio.create_task(tried(task, folder / f"{index}" / way, way)) for way in ways_of(task)]
        for index, task in enumerate(tasks)
    ]
    try:
        for task, ways in zip(tasks, running, strict=True):
            report(CheckedTask(task=task, ways=tuple(await asyncio.gather(*ways))))
    finally:
        left = [running_check for ways in running for running_check in ways]
        for running_check in left:
            running_check.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await fork_client.close()


def ways_of(task: Task) -> list[str]:
    """Nothing first, the whole solution last, and what else its authors wrote in between."""
    if any(step.evaluation.rubric is not None for step in steps_of(task)):
        return []
    scripts = {path.name for folder in _solutions(task) for path in Path(folder).glob("*.sh")}
    return [UNTOUCHED, *sorted(scripts, key=lambda name: (name == SOLVED, name))]


def _solutions(task: Task) -> list[str]:
    """Folders of the task's scripts and of its steps'."""
    return [
        solution
        for solution in (task.solution, *(step.solution for step in task.steps))
        if solution
    ]


def _order(task: Task, way: str, sandbox: SandboxConfig) -> ExecutionSpec:
    """An execution whose agent is a script, the same in name for each step, and judged once."""
    steps = tuple(_scripted(step, step.solution, way) for step in task.steps)
    only = _scripted(steps_of(task)[0], task.solution, way)
    agent_s, overall_s = deadlines_for(DEADLINES, task)
    place = sandbox_for(sandbox)
    return ExecutionSpec(
        execution=ExecutionId(way),
        task=replace(
            task,
            instruction=only.instruction,
            evaluation=replace(task.evaluation, attempts=1),
            steps=steps,
        ),
        url=NO_MODEL,
        harness=("bash", "{instruction}"),
        variables={},
        agent_s=agent_s,
        overall_s=overall_s,
        sandbox=replace(place, readable=(*place.readable, *_solutions(task)), keep="none"),
    )


def _scripted(step: TaskStep, solution: str | None, way: str) -> TaskStep:
    script = None if solution is None else Path(solution) / way
    instruction = str(script) if script is not None and script.is_file() else NOTHING
    return replace(step, instruction=instruction, evaluation=replace(step.evaluation, attempts=1))


async def _try(fork_client: ForkClient, order: ExecutionSpec, folder: Path, way: str) -> TaskCheck:
    path = write_order(folder, order)
    # No proxy takes this key; a supervisor starts nothing without one.
    secret = json.dumps(asdict(Secrets(key="none")))
    process = await fork_client.fork(way, [str(path)], log=folder / LOG_FILE, secret=secret)
    try:
        await process.wait()
    finally:
        process.signal(signal.SIGUSR1)
    try:
        record = facts.read_outcome(folder)
    except LogDamaged as error:
        return TaskCheck(way=way, score=None, problem=str(error))
    score = None if record is None or record.closed is None else record.closed.score
    problem = _problem(order.task, way, record, score)
    said = () if problem is None else _said(folder)
    return TaskCheck(way=way, score=score, problem=problem, said=said)


def _problem(task: Task, way: str, record: OutcomeRecord | None, score: float | None) -> str | None:
    """What is wrong with how it ended or what it scored; None: it is as it should be."""
    if record is None or record.closed is None:
        return "its supervisor ended before it did"
    if record.terminated.ending is not Ending.COMPLETED:
        return f"{record.terminated.ending.value}: {record.terminated.reason}"
    if score is None:
        return f"no score: {record.closed.reason}"
    lowest, highest = task.evaluation.lowest, task.evaluation.highest
    if way == UNTOUCHED and score != lowest:
        return (
            f"expected {lowest:g}, found {score:.3g}: whoever does nothing is paid for it; "
            "a baseline takes that away"
        )
    if way == SOLVED and score != highest:
        return f"expected {highest:g}, found {score:.3g}: nobody can do better than the solution"
    return None


def _said(folder: Path) -> tuple[str, ...]:
    """The end of what the judge printed, or else the script, or else the supervisor."""
    inside = [
        os.fsdecode(visit.label_of(entry))
        for visit in safe_dir.visits(folder, forgives=True)
        for entry in visit.entries
        if entry.is_file
    ]
    for name in (JUDGED_FILE, OUTPUT_FILE, LOG_FILE):
        for path in sorted(inside, reverse=True):
            text = _end_of(folder, path) if PurePosixPath(path).name == name else ""
            if text:
                return tuple(text.splitlines()[-SAID_LINES:])
    return ()


def _end_of(folder: Path, name: str) -> str:
    """An empty text for what cannot be read: the script that wrote it may have shut it."""
    try:
        with os.fdopen(safe_dir.opened(folder, name), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - SAID_BYTES))
            return file.read(SAID_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
