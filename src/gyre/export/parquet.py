"""Rows as a parquet file, a row group per execution.

The columns are those of the jsonl format: execution, leaf, role, ids, mask, target_positions,
logprobs, versions (null where an engine did not say). The key `gyre` of the file's metadata holds
how the rows were drawn, as JSON.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gyre.export.rows import ExecutionRows, Settings, mask

SCHEMA = pa.schema(
    [
        pa.field("execution", pa.string(), nullable=False),
        pa.field("leaf", pa.int32(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("ids", pa.list_(pa.int32()), nullable=False),
        pa.field("mask", pa.list_(pa.bool_()), nullable=False),
        pa.field("target_positions", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("versions", pa.list_(pa.int32())),
    ]
)


def write_rows(path: Path, executions: Iterable[ExecutionRows], settings: Settings) -> None:
    schema = SCHEMA.with_metadata({"gyre": json.dumps(settings)})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for execution in executions:
            if execution.rows:
                writer.write_table(pa.Table.from_arrays(_arrays(execution), schema=schema))


def _arrays(one: ExecutionRows) -> list[pa.Array]:
    columns = [
        [one.execution] * len(one.rows),
        [each.leaf for each in one.rows],
        [each.role for each in one.rows],
        [each.ids for each in one.rows],
        [mask(each) for each in one.rows],
        [each.targets for each in one.rows],
        [each.logprobs for each in one.rows],
        [each.versions for each in one.rows],
    ]
    return [
        pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
