"""Reads a run's call logs from the disk, and builds the tree of each execution."""

from dataclasses import dataclass
from pathlib import Path

from gyre.storage import call_log
from gyre.trajectory.tree import Tree
from gyre.types.call_records import CallClosed, CallRecord
from gyre.types.errors import ConfigError, LogDamaged
from gyre.types.ids import ExecutionId

MOST_NAMED = 8
"""How many executions an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedExecution:
    """One execution read back from its log."""

    execution: ExecutionId
    path: Path
    records: tuple[CallRecord, ...]
    tree: Tree
    torn_bytes: int
    """Bytes of a last record that was not whole when the log was read."""


def find(run: Path, execution: str | None = None) -> list[Path]:
    """Logs of a run folder, or the one log that `run` is; raises ConfigError when there is none."""
    if run.is_file():
        found = [run]
    elif run.is_dir():
        found = list(call_log.logs(run))
    else:
        raise ConfigError(f"{run}: no such run folder or call log")
    if not found:
        raise ConfigError(f"{run}: expected a run folder with call logs in executions/, found none")
    if execution is None:
        return found
    named = [path for path in found if path.name.removesuffix(call_log.SUFFIX) == execution]
    if not named:
        raise ConfigError(f"{run}: no execution {execution}; it has {_listed(found)}")
    return named


def load(path: Path) -> LoadedExecution:
    """The execution of one log; raises LogDamaged, or ConfigError when it cannot be read."""
    try:
        reading = call_log.read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    tree = Tree()
    for number, record in enumerate(reading.records, start=1):
        try:
            tree.apply(record)
        except LookupError as error:
            message = f"{path}: record {number} refers to a call or segment that is not there"
            raise LogDamaged(message) from error
    name = path.name.removesuffix(call_log.SUFFIX)
    return LoadedExecution(
        execution=tree.opened.execution if tree.opened else ExecutionId(name),
        path=path,
        records=reading.records,
        tree=tree,
        torn_bytes=reading.torn_bytes,
    )


def _listed(paths: list[Path]) -> str:
    names = [path.name.removesuffix(call_log.SUFFIX) for path in paths]
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def versions_of(folder: Path, execution: ExecutionId) -> tuple[int, ...]:
    """Those that sampled its tokens, in ascending order; none where its log cannot tell."""
    path = call_log.path_of(folder, execution)
    try:
        records = call_log.read(path).records if path.exists() else ()
    except LogDamaged:
        return ()
    spans = [span for record in records if isinstance(record, CallClosed) for span in record.spans]
    return tuple(sorted({span.version for span in spans if span.version is not None}))
