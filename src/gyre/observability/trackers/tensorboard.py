"""TensorBoard event files, in the folder `tensorboard` of the run's folder.

tensorboardX's event writer is used without its queue: a thread empties it, and when the thread
dies of a full disk, a call that logs waits for ever. Values become float32, as the format has it.
"""

import secrets
import time
from collections.abc import Mapping

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from gyre.observability.trackers.registry import TrackedRun


class TensorBoardTracker:
    """One event file, which is on the disk after each log."""

    def __init__(self, run: TrackedRun) -> None:
        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # The name holds whole seconds, and a file of the same name would be emptied.
        self._writer = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
        self._is_closed = False
        if run.resumed_at is not None:
            # A reader drops what older files say of the steps that are made again.
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=run.resumed_at, session_log=start))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=found)))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write_event(event)
        self._writer.flush()


opened = TensorBoardTracker
