"""Event files as TensorBoard expects them."""

import pytest
from tensorboardX.proto.event_pb2 import SessionLog
from tests.observability.support import event_files

from gyre.observability.trackers.registry import TrackedRun
from gyre.observability.trackers.tensorboard import TensorBoardTracker


def run(folder, **others):
    return TrackedRun(name="small", id="a", folder=folder, project="gyre", **others)


def test_a_file_begins_with_its_version(tmp_path):
    TensorBoardTracker(run(tmp_path)).close()
    (event,) = event_files.events(tmp_path / "tensorboard")

    assert "brain.Event:2" == event.file_version
    assert event.wall_time > 0


def test_a_run_that_goes_on_says_which_steps_are_made_again(tmp_path):
    tracker = TensorBoardTracker(run(tmp_path, resumed_at=12))
    tracker.log({"a": 1.0}, step=12)
    tracker.close()
    _, start, first = event_files.events(tmp_path / "tensorboard")

    assert (12, SessionLog.START) == (start.step, start.session_log.status)
    assert (12, "a") == (first.step, first.summary.value[0].tag)


def test_files_opened_within_a_second_are_several(tmp_path):
    for _ in range(3):
        TensorBoardTracker(run(tmp_path)).close()

    assert 3 == len(list((tmp_path / "tensorboard").iterdir()))


def test_what_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "tensorboard").write_text("no folder")
    with pytest.raises(OSError, match="tensorboard"):
        TensorBoardTracker(run(tmp_path))
