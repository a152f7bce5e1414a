"""Rows and call records as JSON, one a line.

A row is an object with `execution`, `leaf` (the call that ends it), `role`, `ids`, `mask` (a
boolean per id: whether it is a target), `target_positions`, and per target `logprobs` and
`versions`, which is null where an engine did not say.

A record is an object with `execution`, `record` (its kind) and the fields of that kind; token ids
and log-probabilities are lists of numbers, digests are hexadecimal. The hash of the key and the
salt of the digests stay in the log, because they guard an execution that may still be open.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from gyre.export.rows import ExecutionRows, Settings, mask
from gyre.trajectory.loading import LoadedExecution
from gyre.trajectory.selection import Row
from gyre.types.ids import ExecutionId

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
_GUARDED = {"key_hash", "salt"}
_TOKENS = {"ids", "prompt", "output"}


def write_rows(path: Path, executions: Iterable[ExecutionRows], settings: Settings) -> None:
    """The format has no place for the settings: each line is a row and nothing else."""
    with path.open("wb") as file:
        for execution in executions:
            for each in execution.rows:
                file.write(orjson.dumps(_row(execution.execution, each), option=_OPTIONS))


def write_records(path: Path, executions: Iterable[LoadedExecution]) -> int:
    """How many records it wrote."""
    many = 0
    with path.open("wb") as file:
        for execution in executions:
            for record in execution.records:
                kind = {"execution": execution.execution, "record": type(record).__name__}
                file.write(orjson.dumps(kind | _plain(record), option=_OPTIONS))
            many += len(execution.records)
    return many


def _row(execution: ExecutionId, one: Row) -> dict[str, Any]:
    return {
        "execution": execution,
        "leaf": one.leaf,
        "role": one.role,
        "ids": one.ids,
        "mask": mask(one),
        "target_positions": one.targets,
        # As doubles, because the shortest digits of a float32 need not lead back to it.
        "logprobs": one.logprobs.astype(np.float64),
        "versions": one.versions,
    }


def _plain(record: Any) -> dict[str, Any]:
    names = [field.name for field in fields(record) if field.name not in _GUARDED]
    return {name: _value(name, getattr(record, name)) for name in names}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        if name in _TOKENS:
            return np.frombuffer(value, dtype=np.int32)
        if name == "logprobs":
            return np.frombuffer(value, dtype=np.float32).astype(np.float64)
        return value.hex()
    if is_dataclass(value):
        return _plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_value(name, item) for item in value]
    return value
