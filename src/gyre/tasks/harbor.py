"""Harbor's task folders: task.toml, instruction.md, environment, tests, solution and steps.

A portable task begins with `environment/files`; any other begins in its image.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gyre.tasks import safe_paths as within
from gyre.tasks.harbor_dataset import DATASET_FILE, members
from gyre.tasks.harbor_toml import (
    TASK_FILE,
    EnvironmentTable,
    StepTable,
    TaskToml,
    VerifierTable,
    read_task_toml,
)
from gyre.types.errors import TaskError
from gyre.types.tasks import EvaluationRule, ResourceNeeds, Task, TaskStep

TESTS_AT = "/tests"
RESULTS_AT = "/logs/verifier"
WORKDIR = "/app"
"""Places that Harbor's scripts know; the last unless the task says another."""
FOLDERS_DEEP = 6
RUN_TESTS = ("bash", "-c", 'exec bash "$GYRE_EVALUATION/test.sh"')
CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
GIVEN = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


class HarborTasks:
    """The tasks of a folder, or of a dataset's manifest in its order; read at once."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            message = f"{folder}: expected a folder"
            raise TaskError(message)
        if (folder / DATASET_FILE).is_file():
            folders = members(folder)
        else:
            folders = list(within.folders_with(folder, TASK_FILE, depth=FOLDERS_DEEP))
        if not folders:
            message = f"{folder}: expected folders with a {TASK_FILE}, found none"
            raise TaskError(message)
        self._tasks = different((read_task(one) for one in folders), str(folder))

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, index: int) -> Task:
        return self._tasks[index]


def different(tasks: Iterable[Task], where: str) -> list[Task]:
    """The tasks, each with an id of its own; TaskError otherwise."""
    found: dict[str, Task] = {}
    for one in tasks:
        if one.id in found:
            message = f"{where}: {one.id!r} is the name of two tasks"
            raise TaskError(message)
        found[one.id] = one
    return list(found.values())


def read_task(folder: Path) -> Task:
    """The task of one folder; its id is the package's name, or else the folder's."""
    folder = folder.resolve()
    where = str(folder)
    within.check(folder, where)
    told = read_task_toml(folder / TASK_FILE)
    steps = tuple(_step(folder, told, one) for one in told.steps)
    environment = folder / "environment"
    files = environment / "files"
    portable = told.training.portable
    if not portable and told.environment.docker_image is None and not environment.is_dir():
        message = f"{where}: expected a folder environment, or environment.docker_image"
        raise TaskError(message)
    return Task(
        id=folder.name if told.task is None else told.task.name,
        instruction=steps[0].instruction if steps else _instruction(folder),
        files=str(files) if portable and files.is_dir() else None,
        evaluation=steps[-1].evaluation
        if steps
        else _evaluation(folder, None, told, told.verifier),
        variables=_variables(told.environment.env, f"{where}: environment.env"),
        metadata=told.words,
        needs=_needs(environment, told.environment, portable=portable),
        agent_s=_together(steps) if steps else told.agent.timeout_sec,
        overall_s=told.training.overall_timeout_sec,
        preserve=told.training.preserve,
        steps=steps,
        steps_reward=told.multi_step_reward_strategy or "mean",
        solution=_solution(folder),
    )


def _solution(folder: Path) -> str | None:
    return str(folder / "solution") if (folder / "solution" / "solve.sh").is_file() else None


def _instruction(folder: Path) -> str:
    path = folder / "instruction.md"
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError) as error:
        message = f"{path}: {error}"
        raise TaskError(message) from error
    # Marks by which copies of a benchmark are found in training data are not for the agent.
    while lines and (CANARY.match(lines[0].strip()) or not lines[0].strip()):
        lines.pop(0)
    text = "".join(lines)
    if not text.strip():
        message = f"{path}: expected some text"
        raise TaskError(message)
    return text


def _evaluation(
    folder: Path, step: Path | None, told: TaskToml, verifier: VerifierTable
) -> EvaluationRule:
    """By tests/test.sh, whose exit status says nothing; a step's own files lie over the task's."""
    own = folder / "tests" if step is None else step / "tests"
    tests = [one for one in dict.fromkeys((folder / "tests", own)) if one.is_dir()]
    if not any((one / "test.sh").is_file() for one in tests):
        message = f"{own / 'test.sh'}: expected a file"
        raise TaskError(message)
    ours = told.training
    return EvaluationRule(
        argv=RUN_TESTS,
        score="reward",
        reward_key=ours.reward_key,
        gate=ours.gate,
        baseline=ours.baseline,
        sentinels=ours.sentinels,
        evidence=ours.evidence,
        files=str(tests[0]),
        files_over=str(tests[1]) if len(tests) > 1 else None,
        files_at=TESTS_AT,
        results_at=RESULTS_AT,
        variables=_variables(verifier.env or told.verifier.env, f"{folder}: verifier.env"),
        attempt_s=verifier.timeout_sec,
        attempts=ours.eval_retries + 1,
    )


def _step(folder: Path, told: TaskToml, step: StepTable) -> TaskStep:
    at = within.child(folder / "steps", step.name, f"{folder}: steps")
    if not at.is_dir() or at.parent != folder / "steps":
        message = f"{folder}: steps.{step.name}: expected a folder of that name in steps"
        raise TaskError(message)
    least, agent_s = step.min_reward, step.agent.timeout_sec
    if isinstance(least, int | float):
        least = {told.training.reward_key: float(least)}
    return TaskStep(
        name=step.name,
        instruction=_instruction(at),
        files=str(at / "workdir") if (at / "workdir").is_dir() else None,
        evaluation=_evaluation(folder, at, told, step.verifier),
        agent_s=told.agent.timeout_sec if agent_s is None else agent_s,
        least=least or {},
        solution=_solution(at),
    )


def _together(steps: Sequence[TaskStep]) -> float | None:
    """How long agents of all steps may take, if every one of them is bounded."""
    known = [step.agent_s for step in steps if step.agent_s is not None]
    return sum(known) if len(known) == len(steps) else None


def _needs(folder: Path, told: EnvironmentTable, *, portable: bool) -> ResourceNeeds:
    dockerfile = folder / "Dockerfile"
    return ResourceNeeds(
        image=told.docker_image,
        build=str(folder) if told.docker_image is None and dockerfile.is_file() else None,
        build_s=told.build_timeout_sec,
        workdir=told.workdir or _workdir(dockerfile),
        cpus=told.cpus,
        memory_mb=told.memory_mb,
        storage_mb=told.storage_mb,
        portable=portable,
    )


def _workdir(dockerfile: Path) -> str:
    """The last one that the file names."""
    try:
        lines = dockerfile.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return WORKDIR
    named = [words[1] for line in lines if (words := line.split())[:1] == ["WORKDIR"] and words[1:]]
    return named[-1] if named and named[-1].startswith("/") else WORKDIR


def _variables(said: Mapping[str, str], where: str) -> dict[str, str]:
    """With defaults filled in; nothing of this machine's environment goes to a task."""

    def filled(name: str, value: str) -> str:
        def given(found: re.Match[str]) -> str:
            if found[2] is None:
                message = (
                    f"{where}.{name}: {found[0]}: expected a value or a default, "
                    "because tasks get nothing of this machine's environment"
                )
                raise TaskError(message)
            return found[2]

        return GIVEN.sub(given, value)

    return {name: filled(name, value) for name, value in said.items()}
