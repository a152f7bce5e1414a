"""The tracker contract, kept by the fake, by event files, and by extras that are installed."""

import importlib
import importlib.util
import json
import secrets
import struct

import pytest
from tests.contracts import tracker as suite
from tests.observability.support import event_files

from gyre.observability.trackers.registry import TrackedRun
from gyre.testing.trackers import LoggedValue, MemoryTracker

BLOCK = 32768
WHOLE, LAST = 1, 4
"""Kinds of pieces that end a record of W&B's file."""


class Memory:
    def __init__(self, run, _):
        self._logged = []

    def open(self):
        return MemoryTracker(logged=self._logged)

    def read(self):
        return list(self._logged)


class Library:
    """An adapter, whose library is imported only when it is tried."""

    def __init__(self, run, monkeypatch):
        self._run = run
        for name, value in self.variables(run.folder).items():
            monkeypatch.setenv(name, value)

    def variables(self, folder):
        return {}

    def open(self):
        kind = type(self).__name__.lower()
        return importlib.import_module(f"gyre.observability.trackers.{kind}").opened(self._run)


class TensorBoard(Library):
    def read(self):
        return event_files.logged(self._run.folder / "tensorboard")


class Mlflow(Library):
    def variables(self, folder):
        return {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}

    def read(self):
        from mlflow import MlflowClient

        client = MlflowClient()
        place = client.get_experiment_by_name(self._run.project).experiment_id
        (run,) = client.search_runs([place])
        return [
            LoggedValue(name=name, step=one.step, value=one.value)
            for name in run.data.metrics
            for one in client.get_metric_history(run.info.run_id, name)
        ]


class Trackio(Library):
    def variables(self, folder):
        """Read when the library is imported: the first folder serves for all."""
        return {"TRACKIO_DIR": str(folder / "trackio")}

    def read(self):
        from trackio.sqlite_storage import SQLiteStorage

        name = f"{self._run.name}-{self._run.id}"
        return [
            LoggedValue(name=key, step=one["step"], value=float(value))
            for one in SQLiteStorage.get_logs(self._run.project, name)
            for key, value in one.items()
            if key not in ("step", "timestamp")
        ]


class Wandb(Library):
    def variables(self, folder):
        return {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}

    def read(self):
        from wandb.proto.wandb_internal_pb2 import Record

        rows = []
        for path in sorted(self._run.folder.glob("wandb/offline-run-*/run-*.wandb")):
            for record in map(Record.FromString, records(path.read_bytes())):
                if record.WhichOneof("record_type") == "history":
                    items = record.history.item
                    rows.append({one.key or one.nested_key[0]: one.value_json for one in items})
        return [
            LoggedValue(name=name, step=int(row["step"]), value=float(json.loads(text)))
            for row in rows
            for name, text in row.items()
            if name != "step" and not name.startswith("_")
        ]


def records(data):
    """Whole records of W&B's file: after a header, blocks of pieces with checksum, length, kind."""
    found, body, at = [], b"", 7
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        body += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at > len(data):
            break
        if kind in (WHOLE, LAST):
            found.append(body)
            body = b""
    return found


LIBRARIES = [
    one for one in (Mlflow, Trackio, Wandb) if importlib.util.find_spec(one.__name__.lower())
]
"""Extras that nobody has to install to work on Gyre; where they are, they are tried."""


@pytest.mark.parametrize("promise", suite.EVERY_TRACKER, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("kind", [Memory, TensorBoard, *LIBRARIES])
def test_a_tracker_keeps_the_promise_that(kind, promise, tmp_path, monkeypatch):
    run = TrackedRun(name="small", id=secrets.token_hex(6), folder=tmp_path, project="gyre")
    promise(kind(run, monkeypatch))
