"""Sandboxes and evaluator that a spec asks for."""

import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from gyre.aio import run_loop
from gyre.rewards.command import CommandEvaluator
from gyre.rewards.judge import Judge
from gyre.rollout.spec import ExecutionSpec
from gyre.rollout.workspace import PLACE, Workspace
from gyre.sandboxes.docker.container import SOCKET, Container
from gyre.sandboxes.docker.sandbox import DockerSandbox
from gyre.sandboxes.local.mounts import WORKDIR
from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout
from gyre.sandboxes.process import ProcessSandbox
from gyre.sandboxes.proxy_relay import Upstream
from gyre.types.errors import ConfigError, EvaluatorError, SandboxError
from gyre.types.outcomes import Finding
from gyre.types.places import Evaluator, Sandbox
from gyre.types.tasks import Command, Level, Limits, SandboxSpec


class UnavailableEvaluator:
    """An evaluator that fails with a reason, where none can be made."""

    name = "nobody"

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def assess(self, workspace: str, scratch: str, *, within_s: float) -> Finding:
        raise EvaluatorError(self._reason, retryable=False)


def evaluator_for(order: ExecutionSpec, sandbox: Sandbox, folder: Path) -> Evaluator:
    """The evaluator that assesses what the execution leaves."""
    if order.task.evaluation.rubric is not None:
        return _judge(order, folder)
    return CommandEvaluator(
        order.task.evaluation,
        sandbox,
        variables=order.task.variables,
        folder=folder,
        output_bytes=order.output_bytes,
    )


def _judge(order: ExecutionSpec, folder: Path) -> Evaluator:
    settings = order.judge
    if settings is None:
        return UnavailableEvaluator(
            f"task {order.task.id} has a rubric, and nobody is there to judge by it"
        )
    key = None if settings.key_env is None else os.environ.get(settings.key_env)
    if settings.key_env is not None and not key:
        return UnavailableEvaluator(
            f"evaluate.judge.key_env: expected a key in {settings.key_env}, found none"
        )
    try:
        return Judge(order.task, order.task.evaluation, settings, key=key, folder=folder)
    except EvaluatorError as error:
        return UnavailableEvaluator(str(error))


Size = TypeVar("Size", int, float)


def agent_sandbox(
    order: ExecutionSpec, mark: str, folder: Path, proxy: Upstream, *, fills: bool = True
) -> Sandbox:
    """For the harness, in the execution's folder; it reaches the proxy.

    `fills`: what an image has in the place of the workspace is put into it first.
    """
    home = folder / "home"
    if order.sandbox.kind == "process":
        return ProcessSandbox(mark, home=home, owns_descendants=True, proxy=proxy)
    if order.sandbox.kind == "docker":
        container = replace(_container(order, folder / PLACE, home), fills=fills)
        return DockerSandbox(mark, container, most=limits_for(order), proxy=proxy)
    place = SandboxLayout(
        folder=folder / PLACE,
        home=home,
        roots=_roots(order.sandbox),
        workdir=order.task.needs.workdir or WORKDIR,
        readable=_readable(order),
    )
    return LocalSandbox(mark, place, most=limits_for(order), proxy=proxy)


def judging_sandbox(order: ExecutionSpec, mark: str, workspace: Workspace) -> Sandbox:
    """For a command that assesses; it has no network, and a home of its own.

    The agent may have left things in the other one.
    """
    home = workspace.scratch / "home"
    if order.sandbox.kind == "process":
        return ProcessSandbox(mark, home=home, owns_descendants=True)
    results, files = workspace.scratch / "results", workspace.scratch / "files"
    writable = {str(results): results, str(files): files}
    evaluation = order.task.evaluation
    if evaluation.results_at is not None:
        writable[evaluation.results_at] = results
    if evaluation.files_at is not None:
        writable[evaluation.files_at] = files
    if order.sandbox.kind == "docker":
        made = _container(order, workspace.scratch / PLACE, home)
        # What the image has there was put into the workspace before the agent began.
        container = replace(made, writable=writable, fills=False)
        return DockerSandbox(mark, container, most=limits_for(order))
    frozen = (workspace.frozen_root,) if workspace.frozen_root.is_dir() else ()
    roots = _roots(order.sandbox)
    place = SandboxLayout(
        folder=workspace.scratch / PLACE,
        home=home,
        roots=(*roots, *frozen) if roots else (),
        workdir=order.task.needs.workdir or WORKDIR,
        readable=_readable(order),
        writable=writable,
        stacks=True,
        left=frozen[0] if frozen else None,
    )
    return LocalSandbox(mark, place, most=limits_for(order))


def limits_for(order: ExecutionSpec) -> Limits:
    """What the task names where that is less than the run allows, as with deadlines."""
    needs, allowed = order.task.needs, order.sandbox.limits
    return replace(
        allowed,
        memory_bytes=_less(_bytes(needs.memory_mb), allowed.memory_bytes),
        cpus=_less(needs.cpus, allowed.cpus),
        disk_bytes=_less(_bytes(needs.storage_mb), allowed.disk_bytes),
    )


def check(order: SandboxSpec) -> None:
    """Such a sandbox stands on this machine, with what it must have in force; else ConfigError.

    Asked before a run begins, because what cannot be launched would count as having done nothing.
    """
    with tempfile.TemporaryDirectory(prefix="gyre-") as folder:
        found = run_loop(_tried(order, Path(folder)))
    if missing := sorted(set(order.require) - set(found)):
        named = ", ".join(found) if found else "none"
        message = f"sandbox.require: {', '.join(missing)}: not in force here; found {named}"
        raise ConfigError(message)


async def _tried(order: SandboxSpec, folder: Path) -> tuple[Level, ...]:
    """The levels of a sandbox in which a program has run; of containers it is not asked.

    Each task may have an image of its own, which is looked for when an execution begins.
    """
    if order.kind == "process":
        return ()
    if order.kind == "docker":
        return order.require
    (folder / "workspace").mkdir()
    try:
        place = SandboxLayout(folder=folder / PLACE, home=folder / "home", roots=_roots(order))
        sandbox = LocalSandbox(secrets.token_hex(16), place, most=order.limits)
        await sandbox.prepare(str(folder / "workspace"))
        try:
            command = Command(argv=("sh", "-c", ":"))
            await sandbox.start(command, output=str(folder / "output"), most_bytes=10_000)
            return sandbox.levels
        finally:
            await sandbox.kill()
    except SandboxError as error:
        raise ConfigError(
            f"sandbox.kind: {order.kind}: cannot be had on this machine: {error}; for programs "
            'that are trusted there is sandbox.kind = "process"'
        ) from error


def address_of(order: ExecutionSpec) -> Callable[[], tuple[str, int]]:
    """Where the proxy is, asked whenever it matters, because it may have been started again."""

    def address() -> tuple[str, int]:
        url = order.url
        if order.address_file is not None:
            with suppress(FileNotFoundError):
                url = Path(order.address_file).read_text().strip()
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise OSError(str(error)) from error
        if host is None:
            raise OSError(f"expected the proxy's address, found {url!r}")
        return host, 80 if port is None else port

    return address


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 2**20


def _less(needed: Size | None, allowed: Size | None) -> Size | None:
    if needed is None or allowed is None:
        return allowed if needed is None else needed
    return min(needed, allowed)


def _container(order: ExecutionSpec, folder: Path, home: Path) -> Container:
    needs, asked = order.task.needs, order.sandbox
    return Container(
        folder=folder,
        home=home,
        image=needs.image or (asked.image if needs.build is None else None),
        build=None if needs.build is None else Path(needs.build),
        build_s=needs.build_s,
        socket=asked.socket or SOCKET,
        runtime=asked.runtime,
        workdir=needs.workdir,
        readable=tuple(Path(path).absolute() for path in asked.readable),
    )


def _roots(order: SandboxSpec) -> tuple[Path, ...]:
    if order.root is None:
        return ()
    root = Path(order.root).absolute()
    if not root.is_dir() or root == Path("/"):
        message = f"sandbox.root: expected a folder that holds a root, found {root}"
        raise SandboxError(message, retryable=False)
    return (root,)


def _readable(order: ExecutionSpec) -> tuple[Path, ...]:
    """What the order names, files among its arguments too, and the Python that Gyre runs in."""
    own = dict.fromkeys((sys.prefix, sys.base_prefix)) if order.sandbox.root is None else ()
    named = [word for word in order.harness if word.startswith("/") and Path(word).is_file()]
    return tuple(Path(path).absolute() for path in (*own, *order.sandbox.readable, *named))
