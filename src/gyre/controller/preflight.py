"""What a run would be refused for on this machine, found before anything of it is there."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

from gyre.config.run_config import RunConfig, SandboxConfig, TasksConfig
from gyre.config.sections import SERVERS
from gyre.config.validation import (
    Sizes,
    misfits,
    shared_gpu,
    simulator_only,
    untrained,
    unweighable,
    window_misfit,
)
from gyre.controller.run_dir import RunFile
from gyre.controller.run_loop import warn
from gyre.harnesses.program import ContextWindow
from gyre.harnesses.registry import HERE, open_harness
from gyre.model.hf_config import read_description
from gyre.model.registry import is_installed, model_folder, require_torch
from gyre.tasks.registry import open_tasks as open_source
from gyre.tasks.registry import refuse_unfit
from gyre.types.errors import GyreError, ModelError
from gyre.types.places import TaskSource
from gyre.types.tasks import Command, Task

DEVICES = Path("/dev")
_SCRIPTED = re.compile(r"(python[\d.]*|node|bash|sh)")
"""Programs whose first argument is a script."""
_SWITCH = re.compile(r"-[BEIOSbqsuv]+")
"""Those of their options that have no value, and do not take the script's place."""
_BESIDES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a sandbox has programs that the PATH of this process may leave out."""


def require_startable(run: RunFile, *, resumes: bool = False) -> None:
    """Raises ConfigError with all that is in the way of a run, and changes nothing.

    A run that resumes goes on with values that it began with, and a warning says what they mean.
    """
    require_torch("training")
    config = run.config
    lines = [*_uninstalled(config), *_server(config), *_tasks_and_agent(config)]
    begun_with = [*unweighable(config), *simulator_only(config)]
    try:
        sizes = sizes_of(config.model.name)
    except ModelError as error:
        lines.insert(0, f"model.name: {error}")
    else:
        devices = num_devices()
        lines += [*misfits(config, sizes, devices=devices), *untrained(config)]
        begun_with += [*window_misfit(config, sizes), *shared_gpu(config, devices=devices)]
    if resumes:
        for line in begun_with:
            warn(line)
    else:
        lines += begun_with
    if lines:
        raise run.loaded.refusal(lines)


def sizes_of(model: str) -> Sizes:
    fields = read_description(model_folder(model)).fields
    return Sizes(
        layers=fields["num_hidden_layers"],
        heads=fields["num_attention_heads"],
        kv_heads=fields["num_key_value_heads"],
        columns=fields["intermediate_size"],
        context_tokens=fields["max_position_embeddings"],
    )


def num_devices(folder: Path = DEVICES) -> int:
    """CUDA devices that cells see; asked of the kernel, because torch is not loaded here."""
    found = sum(path.name.removeprefix("nvidia").isdigit() for path in folder.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    # As CUDA reads it: what is behind one that cannot be is hidden as well.
    listed = takewhile(lambda one: one.strip() not in ("", "-1"), visible.split(","))
    return min(found, len(list(listed)))


def harness_for(config: RunConfig) -> Command:
    """How every execution starts its agent program; ConfigError if it is not installed."""
    window = ContextWindow.of(
        context_tokens=config.proxy.context_tokens, reply_tokens=config.sampling.max_tokens
    )
    return open_harness(config.harness, window)


def open_tasks(section: TasksConfig, *, sandbox: SandboxConfig, where: str = "tasks") -> TaskSource:
    """The tasks that a table of the run file names, all fit for such a sandbox."""
    found = open_source(section, where=where)
    refuse_unfit(found, sandbox)
    return found


def _uninstalled(config: RunConfig) -> Iterator[str]:
    """A line for each package that the run asks for, and that is not there."""
    wanted = {f"trackers.{kind}": kind for kind in config.trackers.kinds if kind != "tensorboard"}
    if config.trainer.kind == "megatron":
        wanted["trainer.kind"] = "megatron"
    if config.transport.kind == "mooncake":
        wanted["transport.kind"] = "mooncake"
    if config.cluster.kind == "ray":
        wanted["cluster.kind"] = "ray"
    for path, name in wanted.items():
        if not is_installed(name):
            yield f"{path}: needs {name}: pip install 'gyre-rl[{name}]'"


def _server(config: RunConfig) -> Iterator[str]:
    """A line if a cell's server has no interpreter here; nodes of Ray have their own."""
    cells = config.cells
    if cells.engine not in SERVERS or config.cluster.kind != "local":
        return
    python = None if cells.server is None else cells.server.python
    if python is None and not is_installed(cells.engine):
        yield (
            f"cells.server.python: missing; expected the interpreter of an environment with "
            f"{cells.engine}, which is not installed beside Gyre"
        )
    elif python is not None and not Path(python).expanduser().is_file():
        yield f"cells.server.python: expected an interpreter, found no file {python}"


def _tasks_and_agent(config: RunConfig) -> Iterator[str]:
    """A line for each table of tasks, and each part of the agent's command, that is no use."""
    first = None
    try:
        first = open_tasks(config.tasks, sandbox=config.sandbox).get(0)
    except GyreError as error:
        yield str(error)
    held_out = config.evaluation
    if held_out.slots and held_out.tasks is not None:
        try:
            open_tasks(held_out.tasks, sandbox=config.sandbox, where="evaluation.tasks")
        except GyreError as error:
            yield str(error)
    try:
        agent = harness_for(config)
    except GyreError as error:
        yield str(error)
    else:
        if config.harness.kind == "command":
            yield from _nowhere(config, agent, first)


def _nowhere(config: RunConfig, agent: Command, task: Task | None) -> Iterator[str]:
    """A line for each file of the agent's command that is not there.

    What lies in an image, in a root of its own or on another machine is not looked for, nor what
    a task of several steps may bring with one of them.
    """
    for word, place in zip(config.harness.argv or (), agent.argv, strict=True):
        if word.startswith(HERE) and "{" not in place and not Path(place).exists():
            yield f"harness.argv: expected a file at {place}, found none"
    is_elsewhere = config.sandbox.kind == "docker" or config.sandbox.root is not None
    if is_elsewhere or config.cluster.kind != "local":
        return
    program, *rest = agent.argv
    wanted = [script] if (script := _script(program, rest)) is not None else []
    if "/" in program:
        wanted.append(program)
    elif "{" not in program:
        places = agent.variables.get("PATH", os.environ.get("PATH", ""))
        if shutil.which(program, path=f"{places}:{_BESIDES}") is None:
            yield f"harness.argv: expected a program, found no {program}"
    if task is None or task.steps:
        return
    for name in wanted:
        given = name in (config.harness.argv or ())
        is_there = Path(name).is_absolute() and Path(name).exists()
        in_task = task.files is not None and (Path(task.files) / name).exists()
        if given and "{" not in name and not (is_there or in_task):
            yield f"harness.argv: expected {name} among the files of task {task.id}, found none"


def _script(program: str, rest: Sequence[str]) -> str | None:
    """What an interpreter is given to run; None where that is no file of its own."""
    if not _SCRIPTED.fullmatch(Path(program).name):
        return None
    found = next(dropwhile(_SWITCH.fullmatch, rest), "-")
    return None if found.startswith("-") else found
