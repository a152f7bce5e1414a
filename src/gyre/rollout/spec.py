"""A supervisor's input: its order file, and the proxy's totals, two numbers that grow."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gyre.config.sections import JudgeConfig
from gyre.storage.files import replace, take, write_plan
from gyre.types.errors import ConfigError, wrap_errors
from gyre.types.ids import ExecutionId
from gyre.types.tasks import SandboxSpec, Task

ORDER_FILE = "order.json"
TOLD_FILE = "told.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSpec:
    """One execution to supervise; its secrets are not here, because this lies on the disk."""

    execution: ExecutionId
    task: Task
    url: str
    """Where its calls go."""
    harness: tuple[str, ...]
    """The agent program's arguments, with `{instruction}`, `{task}` and `{url}` to be filled in."""
    variables: dict[str, str]
    """The agent program's environment, besides the usual."""
    home: dict[str, str] = field(default_factory=dict)
    """Files in the agent program's home, by their paths there, filled in as variables are."""
    layers: tuple[str, ...] = ()
    """Folders that the agent program reads although its sandbox hides others."""
    agent_s: float
    """How long the harness may run."""
    overall_s: float
    """How long harness and evaluation may take together."""
    output_bytes: int = 2**20
    """How much is kept of what a program prints."""
    counts_placeholders: bool = True
    """Whether what left nothing to assess is a placeholder, or excluded (SPEC 6.4)."""
    judge: JudgeConfig | None = None
    """Who judges a task that has a rubric."""
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    """Where its programs run."""
    address_file: str | None = None
    """File that says where the proxy is now; without one it stays where `url` says."""
    facts_url: str | None = None
    """Where facts are posted too."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTotals:
    """What the proxy knows of a running execution, and its supervisor needs."""

    held_s: float = 0.0
    """Time its calls were held with no engine, which it is not charged for (SPEC 6.1)."""
    committed_calls: int | None = None
    """None: the proxy has not reported it."""


def write_order(folder: Path, order: ExecutionSpec) -> Path:
    """The order file of an execution's folder, which exists from now on."""
    return write_plan(folder / ORDER_FILE, order)


def withdraw_order(folder: Path) -> bool:
    """Whether no process supervises the folder, or will: one that takes it later finds no order.

    False also where that cannot be told or done now, as on a full disk.
    """
    try:
        lock = take(folder)
        try:
            (folder / ORDER_FILE).unlink(missing_ok=True)
        finally:
            os.close(lock)
    except FileNotFoundError:
        return True
    except (ConfigError, OSError):
        return False
    return True


def read_order(path: Path) -> ExecutionSpec:
    """ConfigError if it is not an order."""
    with wrap_errors(ConfigError, f"{path}: expected an order", (OSError, msgspec.MsgspecError)):
        order = msgspec.json.decode(path.read_bytes(), type=ExecutionSpec)
    if order.format != FORMAT:
        raise ConfigError(f"{path}: expected an order of format {FORMAT}, found {order.format}")
    return order


def write_proxy_totals(folder: Path, totals: ProxyTotals) -> None:
    """The supervisor reads it when a deadline comes, and when it closes the execution."""
    replace(folder / TOLD_FILE, msgspec.json.encode(totals))


def read_proxy_totals(folder: Path) -> ProxyTotals:
    """The totals that were written last; zero if none were or they cannot be read."""
    try:
        return msgspec.json.decode((folder / TOLD_FILE).read_bytes(), type=ProxyTotals)
    except (OSError, msgspec.MsgspecError):
        return ProxyTotals()
